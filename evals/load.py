"""Putting load on an endpoint: requests kept in flight together, in a window in which nothing else happens here."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from evals.errors import WorkloadError
from evals.record import Request, RequestRecord
from evals.self_check import ClientCheck, SelfCheck
from evals.stream_client import StreamClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What came of one window of load."""

    records: tuple[RequestRecord, ...]
    """In the order of the requests."""
    check: ClientCheck
    started_ns: int
    ended_ns: int


async def run_at_once(client: StreamClient, requests: Sequence[Request], concurrency: int) -> Load:
    """Send all requests, at most `concurrency` in flight: a closed loop whose first wave starts together.

    Failed requests are records like the others. Cancelling it closes the connections of the requests under way.

    Raises:
        EndpointGoneError: the endpoint takes no connection, found out before any request was sent.
        WorkloadError: a concurrency below 1.
    """
    if concurrency < 1:
        raise WorkloadError(f"A concurrency of {concurrency} sends nothing; it must be at least 1.")
    together = min(concurrency, len(requests))
    await client.open(together)
    records: dict[int, RequestRecord] = {}
    waiting = iter(enumerate(requests))

    async def worker() -> None:
        for index, request in waiting:
            records[index] = await client.stream(request)

    check = SelfCheck()
    deferred_before = client.defer
    client.defer = True
    try:
        with _no_garbage_collection():
            check.start()
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(together):
                        group.create_task(worker())
            finally:
                check.stop()
    finally:
        client.defer = deferred_before
        cpu_s = time.process_time()
        client.finish_all()
        cpu_s = time.process_time() - cpu_s
    ordered = tuple(records[index] for index in range(len(requests)))
    return Load(
        records=ordered,
        check=check.result(
            ordered, asked_in_flight=together, connections=client.connections_opened, decoding_cpu_s=cpu_s
        ),
        started_ns=check.started_ns,
        ended_ns=check.ended_ns,
    )


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What `asyncio.Runner` is given: uvloop's loop where that is installed, else None, which is the standard one.

    It halves the CPU per arrival. The standard loop measures the same, with a little more delay.
    """
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@contextlib.contextmanager
def _no_garbage_collection() -> Generator[None]:
    """A full collection among many live objects takes milliseconds, in which no byte is stamped."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
