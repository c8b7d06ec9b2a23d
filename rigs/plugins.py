"""A module in a plugin folder is a plugin: found by its file, loaded when asked for, in no list."""

from __future__ import annotations

import importlib
import pkgutil

import rigs.engines
from rigs.engines.base import Engine
from rigs.errors import UnknownNameError


def engine_names() -> list[str]:
    """Names of the engines there are, without loading one."""
    return sorted(
        module.name
        for module in pkgutil.iter_modules(rigs.engines.__path__)
        if module.name != "base" and not module.name.startswith("_")
    )


def load_engine(name: str) -> Engine:
    """Load the engine of this name.

    Raises:
        UnknownNameError: no such engine; the message lists them.
    """
    if name not in engine_names():
        raise UnknownNameError("engine", name, engine_names())
    plugin: Engine = importlib.import_module(f"rigs.engines.{name}").Plugin.build()
    return plugin
