"""The streaming client against a server with a known schedule."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from evals.load import Load, loop_factory, run_at_once
from evals.record import Request, RequestRecord
from evals.stream_client import StreamClient
from tests.bench.figure import Figure, percentile
from tests.evals.truth_server import Truth, TruthServer

STREAMS = 64
TTFT_MS, GAP_MS, REPLY_TOKENS = 50.0, 10.0, 128
"""The schedule of the server: one stream brings 100 chunks a second."""
WAVES = 3

MakeLoop = Callable[[], asyncio.AbstractEventLoop]


def chats(count: int, max_tokens: int) -> list[Request]:
    return [
        Request(
            id=f"r{number}",
            path="/v1/chat/completions",
            body=json.dumps(
                {
                    "model": "truth",
                    "messages": [{"role": "user", "content": f"{number} please"}],
                    "max_tokens": max_tokens,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    "cache_prompt": False,
                }
            ).encode(),
        )
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A load and what this process spent on it, decoding included."""

    load: Load
    cpu_s: float
    wall_s: float


def measure(base_url: str, requests: Sequence[Request], concurrency: int, make_loop: MakeLoop | None) -> Cost:
    """Send the requests after a warm-up of the connections."""

    async def run() -> Cost:
        async with StreamClient(base_url) as client:
            await run_at_once(client, requests[:concurrency], concurrency)
            cpu_s, began = time.process_time(), time.monotonic()
            load = await run_at_once(client, requests, concurrency)
            return Cost(load=load, cpu_s=time.process_time() - cpu_s, wall_s=time.monotonic() - began)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        cost = runner.run(run())
    broken = [record.reason for record in cost.load.records if record.status != "ok"]
    if broken:
        raise RuntimeError(f"{len(broken)} of {len(requests)} requests failed: {broken[0]}")
    return cost


def known(value: int | None) -> int:
    assert value is not None
    return value


def client_cpu() -> Iterator[Figure]:
    loops: dict[str, tuple[MakeLoop | None, float]] = {"uvloop": (loop_factory(), 20), "the standard loop": (None, 60)}
    for loop, (make, target) in loops.items():
        figure = Figure(
            name="client-cpu",
            what=f"client CPU per 1,000 chunks, {STREAMS} streams x {1000 / GAP_MS:g} chunks/s, {loop}",
            unit="ms",
            target=target,
            best_peer="llama-benchy 68",
        )
        if loop == "uvloop" and make is None:
            yield replace(figure, note="uvloop is not installed")
            continue
        with TruthServer(process=True, ttft_ms=TTFT_MS, gap_ms=GAP_MS) as server:
            cost = measure(server.base_url, chats(STREAMS * WAVES, REPLY_TOKENS), STREAMS, make)
        check = cost.load.check
        yield replace(
            figure,
            value=cost.cpu_s * 1e3 / known(check.chunks) * 1e3,
            note=f"{check.chunks} chunks; the client itself says {check.cpu_ms_per_1k_chunks:.1f} ms, {check.verdict}",
        )


def delivered() -> Iterator[Figure]:
    with TruthServer(process=True, ttft_ms=TTFT_MS, gap_ms=GAP_MS) as server:
        done = measure(server.base_url, chats(STREAMS * WAVES, REPLY_TOKENS), STREAMS, loop_factory()).load
        truths = server.requests[STREAMS:]
    wave_s = (TTFT_MS + (REPLY_TOKENS - 1) * GAP_MS) / 1e3
    tokens = sum(known(record.output_tokens) for record in done.records)
    first = min(known(record.sent_ns) for record in done.records)
    last = max(record.chunk_ns[-1] for record in done.records)
    speed = tokens / ((last - first) / 1e9)
    scheduled = tokens / (WAVES * wave_s)
    served_s = (max(truth.sent_ns[-1] for truth in truths) - min(truth.received_ns for truth in truths)) / 1e9
    yield Figure(
        name="delivered",
        what=f"delivered throughput off the schedule, {STREAMS} streams, {WAVES} waves",
        value=abs(speed / scheduled - 1) * 100,
        unit="%",
        target=1,
        best_peer="-19 to -24 %",
        note=f"{speed:,.0f} of {scheduled:,.0f} tok/s; the server itself sent {tokens / served_s:,.0f}",
    )


def ttft() -> Iterator[Figure]:
    with TruthServer(process=True, ttft_ms=TTFT_MS) as server:
        one_by_one = measure(server.base_url, chats(50, 2), 1, loop_factory()).load
        errors = ttft_errors_ms(one_by_one.records, server.requests)
    yield Figure(
        name="ttft",
        what="TTFT error, one request at a time, mean",
        value=statistics.mean(errors),
        unit="ms",
        target=1,
        best_peer="+42 to +59",
        note=f"n={len(errors)}, p99 {percentile(errors, 0.99):.2f} ms, against the server's truth",
    )
    errors = []
    for _ in range(3):
        with TruthServer(process=True, ttft_ms=TTFT_MS) as server:
            burst = measure(server.base_url, chats(STREAMS, 2), STREAMS, loop_factory()).load
            errors += ttft_errors_ms(burst.records, server.requests)
    yield Figure(
        name="ttft",
        what=f"TTFT error in a burst of {STREAMS}, mean",
        value=statistics.mean(errors),
        unit="ms",
        target=5,
        best_peer="+42 to +59",
        note=f"3 bursts, p99 {percentile(errors, 0.99):.2f} ms, against the server's truth",
    )


def ttft_errors_ms(records: Sequence[RequestRecord], truths: Sequence[Truth]) -> list[float]:
    """By how much each TTFT differs from that of the server, from a request read to its first chunk handed over.

    The server's own time in reading a burst counts against the client: nobody tells the two apart.
    """
    by_id = {truth.id: truth for truth in truths}  # the last of an id: before it came the warm-up
    return [
        abs((record.chunk_ns[0] - known(record.sent_ns)) - (by_id[record.id].sent_ns[0] - by_id[record.id].received_ns))
        / 1e6
        for record in records
    ]
