"""The installed version, as the server, the worker and the reports say it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("rigbench")
    except PackageNotFoundError:  # run out of a checkout that was never installed
        return "0+unknown"


VERSION = _installed()
