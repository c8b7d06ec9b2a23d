"""Whether the client itself was the limit: a measurement of the measuring process, judged against fixed limits."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from evals.record import RequestRecord
from rigs.facts import Border

CPU_SHARE_LIMIT = 0.8
"""Of one core: one loop can use no more, and queues long before that."""
LOOP_LAG_P99_LIMIT_MS = 5.0
SEND_SPREAD_LIMIT_MS = 10.0
"""Between the first and the last send of a burst of up to 64; larger bursts may take proportionally longer."""
SEND_SPREAD_BURST = 64
PEAK_IN_FLIGHT_LIMIT = 0.95
"""Share of the concurrency asked for."""

SHORTEST_WINDOW_MS = 100.0
"""In less than this the sending alone fills the window, and its CPU share says nothing."""

_PROBE_INTERVAL_S = 0.02

LIMITS = {
    "cpu_share": CPU_SHARE_LIMIT,
    "loop_lag_p99_ms": LOOP_LAG_P99_LIMIT_MS,
    "send_spread_ms": SEND_SPREAD_LIMIT_MS,
    "peak_in_flight_share": PEAK_IN_FLIGHT_LIMIT,
}


class ClientCheck(Border):
    """What the client cost and how late it was. A figure is null where there was nothing to measure it by."""

    cpu_share: float | None = None
    """CPU seconds of this process per second of the window; null for a window too short to tell."""
    cpu_ms_per_1k_chunks: float | None = None
    """All of the window's CPU and that of decoding, per 1,000 events received."""
    loop_lag_p50_ms: float | None = None
    """How late a timer of the loop ran: as late were the stamps of bytes that came then."""
    loop_lag_p99_ms: float | None = None
    send_spread_ms: float | None = None
    """First to last send of the requests that were started together."""
    connections: int | None = None
    """Opened by this client so far; far above the concurrency means that they were not kept alive."""
    peak_in_flight: int | None = None
    asked_in_flight: int | None = None
    chunks: int | None = None
    verdict: Literal["ok", "client_limited"] = "ok"
    reasons: tuple[str, ...] = ()
    limits: dict[str, float] = Field(default_factory=lambda: dict(LIMITS))


class SelfCheck:
    """Watches this process for one window: `start`, the work, `stop`, then `result`. Needs a running loop."""

    def __init__(self) -> None:
        self.started_ns = 0
        self.ended_ns = 0
        self._lags_ns: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._cpu_ns = 0

    def start(self) -> None:
        self._lags_ns.clear()
        self._schedule()
        self.started_ns = time.monotonic_ns()
        self._cpu_ns = time.process_time_ns()

    def stop(self) -> None:
        """End the window; calling it again changes nothing."""
        if self._timer is None:
            return
        self._cpu_ns = time.process_time_ns() - self._cpu_ns
        self.ended_ns = time.monotonic_ns()
        self._timer.cancel()
        self._timer = None
        # A probe that is overdue at the end was held up by the very thing that it is there to notice.
        self._note(self.ended_ns - self._due_ns)

    def result(
        self,
        records: Sequence[RequestRecord],
        *,
        asked_in_flight: int,
        connections: int | None = None,
        decoding_cpu_s: float = 0.0,
    ) -> ClientCheck:
        """The check of a stopped window.

        `records` are in the order of their start: the first `asked_in_flight` of them were started together.
        `decoding_cpu_s` was spent on them after the window.
        """
        cpu_ms = self._cpu_ns / 1e6
        wall_ms = (self.ended_ns - self.started_ns) / 1e6
        chunks = sum(record.chunks for record in records)
        lags_ms = sorted(lag / 1e6 for lag in self._lags_ns)
        burst = [record.sent_ns for record in records[:asked_in_flight] if record.sent_ns is not None]
        return judged(
            ClientCheck(
                cpu_share=cpu_ms / wall_ms if wall_ms >= SHORTEST_WINDOW_MS else None,
                cpu_ms_per_1k_chunks=(cpu_ms + decoding_cpu_s * 1e3) / chunks * 1e3 if chunks else None,
                loop_lag_p50_ms=_percentile(lags_ms, 0.50),
                loop_lag_p99_ms=_percentile(lags_ms, 0.99),
                send_spread_ms=(max(burst) - min(burst)) / 1e6 if len(burst) > 1 else None,
                connections=connections,
                peak_in_flight=peak_in_flight(records),
                asked_in_flight=asked_in_flight,
                chunks=chunks,
            ),
            any_failed=any(record.status == "failed" for record in records),
        )

    def _schedule(self) -> None:
        self._due_ns = time.monotonic_ns() + int(_PROBE_INTERVAL_S * 1e9)
        self._timer = asyncio.get_running_loop().call_later(_PROBE_INTERVAL_S, self._probe)

    def _probe(self) -> None:
        self._note(time.monotonic_ns() - self._due_ns)
        self._schedule()

    def _note(self, lag_ns: int) -> None:
        """Record a lag, and those that probes would have met which could not even be set meanwhile."""
        if lag_ns < 0 and self._timer is None:
            return  # the window ended before this probe was due
        step_ns = int(_PROBE_INTERVAL_S * 1e9)
        self._lags_ns.append(max(lag_ns, 0))
        self._lags_ns.extend(range(lag_ns - step_ns, 0, -step_ns))


def judged(check: ClientCheck, *, any_failed: bool = False) -> ClientCheck:
    """The check with its verdict.

    Where requests failed, a low number in flight is theirs and not the client's, so it is not held against the client.
    """
    reasons: list[str] = []
    if check.cpu_share is not None and check.cpu_share > CPU_SHARE_LIMIT:
        reasons.append(f"the client used {check.cpu_share:.2f} of a core (limit {CPU_SHARE_LIMIT:g})")
    if check.loop_lag_p99_ms is not None and check.loop_lag_p99_ms > LOOP_LAG_P99_LIMIT_MS:
        reasons.append(f"its loop was {check.loop_lag_p99_ms:.1f} ms late at p99 (limit {LOOP_LAG_P99_LIMIT_MS:g})")
    asked = check.asked_in_flight
    if check.send_spread_ms is not None:
        limit_ms = SEND_SPREAD_LIMIT_MS * max(1.0, (asked or 0) / SEND_SPREAD_BURST)
        if check.send_spread_ms > limit_ms:
            reasons.append(
                f"sending a burst of {asked} requests took {check.send_spread_ms:.1f} ms (limit {limit_ms:g})"
            )
    peak = check.peak_in_flight
    if asked and peak is not None and peak < PEAK_IN_FLIGHT_LIMIT * asked and not any_failed:
        reasons.append(f"at most {peak} of {asked} requests were in flight at once")
    return check.model_copy(
        update={"verdict": "client_limited" if reasons else "ok", "reasons": tuple(dict.fromkeys(reasons))}
    )


def merge(checks: Sequence[ClientCheck]) -> ClientCheck:
    """The check of a unit from those of its windows: the worst of each figure, the cost weighted by chunks.

    The number in flight is that of the window which came least close to what it asked.
    """
    reached = [check for check in checks if check.asked_in_flight and check.peak_in_flight is not None]
    least = min(
        reached,
        key=lambda check: ((check.peak_in_flight or 0) / (check.asked_in_flight or 1), -(check.chunks or 0)),
        default=None,
    )
    costs = [
        (check.cpu_ms_per_1k_chunks, check.chunks) for check in checks if check.cpu_ms_per_1k_chunks and check.chunks
    ]
    weight = sum(chunks for _, chunks in costs)
    chunks = [check.chunks for check in checks if check.chunks is not None]
    reasons = tuple(dict.fromkeys(reason for check in checks for reason in check.reasons))
    return ClientCheck(
        cpu_share=_worst(check.cpu_share for check in checks),
        cpu_ms_per_1k_chunks=sum(cost * chunks for cost, chunks in costs) / weight if weight else None,
        loop_lag_p50_ms=_worst(check.loop_lag_p50_ms for check in checks),
        loop_lag_p99_ms=_worst(check.loop_lag_p99_ms for check in checks),
        send_spread_ms=_worst(check.send_spread_ms for check in checks),
        connections=max((check.connections for check in checks if check.connections is not None), default=None),
        peak_in_flight=least.peak_in_flight if least else None,
        asked_in_flight=least.asked_in_flight if least else None,
        chunks=sum(chunks) if chunks else None,
        verdict="client_limited" if any(check.verdict == "client_limited" for check in checks) else "ok",
        reasons=reasons,
    )


def peak_in_flight(records: Sequence[RequestRecord]) -> int:
    """The most requests that were between their sending and their end at one moment."""
    steps: list[tuple[int, int]] = []
    for record in records:
        if record.sent_ns is not None and record.done_ns is not None:
            steps.append((record.sent_ns, 1))
            steps.append((record.done_ns, -1))
    peak = now = 0
    for _, step in sorted(steps):  # at one instant an end comes first: the next request follows it
        now += step
        peak = max(peak, now)
    return peak


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """Linear interpolation between the two nearest ranks."""
    if not ordered:
        return None
    rank = share * (len(ordered) - 1)
    below = math.floor(rank)
    above = math.ceil(rank)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
