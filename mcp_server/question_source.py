"""Where a caller says that an eval's questions are, and what can be refused of it before anything is loaded."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field

from evals.spec import Dataset
from rigs.errors import UnsupportedFeatureError, UsageError
from rigs.facts import Border

SAMPLE, HUB = "sample", "hub"
SHA256 = r"^[0-9a-f]{64}$"


class QuestionSource(Border):
    """What the caller says of where the questions are."""

    dataset: Dataset
    source: str = SAMPLE
    """`sample`, `hub`, an absolute path on this machine, or an http(s) address."""
    sha256: str | None = Field(default=None, pattern=SHA256)
    """Of what lies there; an address needs it."""
    answers: str | None = None
    """The file of answers, for a data set that has them apart: a path or an address."""
    answers_sha256: str | None = Field(default=None, pattern=SHA256)


def check_source(source: QuestionSource) -> None:
    """Refuse what cannot be loaded, as far as that shows without loading it.

    Raises:
        UsageError: in words.
    """
    apart = source.dataset == "bfcl_simple"
    if source.source in (SAMPLE, HUB):
        given = {"sha256": source.sha256, "answers": source.answers, "answers_sha256": source.answers_sha256}
        extra = [name for name, value in given.items() if value is not None]
        if extra:
            raise UsageError(f"source={source.source!r} has its questions and answers pinned; leave out {extra[0]}.")
        if source.source == HUB and apart:
            raise UnsupportedFeatureError(
                "BFCL version 4 is not on the hub as a data set. Give source= and answers= the two files "
                "BFCL_v4_simple_python.json and possible_answer/BFCL_v4_simple_python.json of the package bfcl-eval."
            )
        return
    if apart and source.answers is None:
        raise UsageError("bfcl_simple has its answers in a second file: give answers= as well (a path or an address).")
    if not apart and source.answers is not None:
        raise UsageError(f"{source.dataset} has its answers in the same file; leave out answers.")
    for name, place, sha256 in (
        ("source", source.source, source.sha256),
        ("answers", source.answers, source.answers_sha256),
    ):
        if place is None:
            continue
        if is_address(place):
            if sha256 is None:
                pin = "sha256" if name == "source" else "answers_sha256"
                raise UsageError(f"{place} is an address: give {pin}=, so that every run asks the same questions.")
        elif not Path(place).expanduser().is_absolute():
            raise UsageError(
                f"{name}={place!r} is none of: 'sample', 'hub', an absolute path of this machine, an http(s) address."
            )
        elif not Path(place).expanduser().is_file():
            raise UsageError(f"There is no file {place} on this machine.")


def is_address(place: str) -> bool:
    return re.match(r"https?://", place) is not None
