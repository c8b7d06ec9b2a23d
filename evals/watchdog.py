"""Ending requests whose time is over, without a task for each."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

from evals.http_connection import Exchange, HttpConnection


@dataclass(frozen=True, slots=True)
class Watched:
    exchange: Exchange
    connection: HttpConnection
    deadline_ns: int
    timeout_s: float
    idle_timeout_s: float

    @property
    def due_ns(self) -> int:
        return min(self.deadline_ns, self._silent_since_ns + int(self.idle_timeout_s * 1e9))

    @property
    def _silent_since_ns(self) -> int:
        return self.exchange.last_ns or 0

    def check(self, now_ns: int) -> None:
        if self.exchange.done.done():
            return  # its task has not run yet, and its connection may serve another by now
        if now_ns >= self.deadline_ns:
            self.connection.fail(f"timeout: not finished within {self.timeout_s:g} s")
        elif now_ns >= self.due_ns:
            self.connection.fail(f"stalled: no byte for {self.idle_timeout_s:g} s")


class Watchdog:
    """One timer for the nearest of all deadlines. It fires rarely: an arrival moves a deadline, not the timer."""

    def __init__(self) -> None:
        self._watched: dict[Exchange, Watched] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: float = math.inf

    def add(self, watched: Watched) -> None:
        self._watched[watched.exchange] = watched
        if watched.due_ns < self._timer_ns:
            self._set(watched.due_ns)

    def remove(self, exchange: Exchange) -> None:
        self._watched.pop(exchange, None)
        if not self._watched:
            self.stop()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ns = None, math.inf

    def _set(self, due_ns: int) -> None:
        self.stop()
        self._timer_ns = due_ns
        delay_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer, self._timer_ns = None, math.inf
        now_ns = time.monotonic_ns()
        for watched in tuple(self._watched.values()):
            watched.check(now_ns)
        due = [watched.due_ns for watched in self._watched.values() if not watched.exchange.done.done()]
        if due:
            self._set(min(due))
