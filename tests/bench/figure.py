"""One measured value beside its target."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value beside its target; `value` is None where it could not be had, and `note` says why."""

    name: str
    what: str
    value: float | None = None
    unit: str = ""
    target: float | None = None
    at_least: bool = False
    """The target is a floor; else it is a ceiling."""
    best_peer: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured by target: below 1 is good for a ceiling, above 1 for a floor."""
        return None if self.value is None or not self.target else self.value / self.target

    @property
    def met(self) -> bool | None:
        return None if self.ratio is None else (self.ratio >= 1 if self.at_least else self.ratio <= 1)


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest rank: of so few values nothing finer can be said."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]
