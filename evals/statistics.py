"""Summaries of samples. Each has one definition here, so that no two reports can mean different things by a p99."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the samples lie, by linear interpolation between neighbours.

    `ordered` is sorted and not empty.
    """
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    # Not a*(1-t) + b*t: that can leave the range of its ends by a rounding error.
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


class Weighted:
    """Samples that each count several times, with the figures that a list of all the repetitions would have.

    `len` is the number of repetitions; any one of them can be read, in order, without the list being made.
    """

    def __init__(self, samples: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(sample for sample in samples if sample[1] > 0)
        self._values = [value for value, _ in ordered]
        self._ends = list(accumulate(count for _, count in ordered))
        self._sum = math.fsum(value * count for value, count in ordered)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def percentile(self, share: float) -> float:
        """As `percentile`; there is at least one sample."""
        at = share * (len(self) - 1)
        below = math.floor(at)
        low, high = self._value(below), self._value(min(below + 1, len(self) - 1))
        return low + (high - low) * (at - below)

    def mean(self) -> float | None:
        return self._sum / len(self) if self._ends else None

    def _value(self, rank: int) -> float:
        return self._values[bisect_right(self._ends, rank)]


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def median(values: Sequence[float]) -> float | None:
    return percentile(sorted(values), 0.5) if values else None


def wilson_range(count: int, of: int) -> tuple[float, float]:
    """Where a share of which `count` of `of` were seen lies with 95 % confidence; `of` is above 0."""
    z = 1.959963984540054
    share, spread = count / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    # The ends belong to it exactly where all or none were seen; rounding must not leave them out.
    return (0.0 if count == 0 else middle - half, 1.0 if count == of else middle + half)


def geometric_mean(values: Sequence[float]) -> float | None:
    """None for no values and where one is not above 0: a speed of nothing has no logarithm."""
    if not values or min(values) <= 0:
        return None
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def relative_spread(values: Sequence[float]) -> float | None:
    """(largest - smallest) / mean; None below two values, which cannot spread."""
    middle = mean(values)
    if len(values) < 2 or not middle:
        return None
    return (max(values) - min(values)) / middle
