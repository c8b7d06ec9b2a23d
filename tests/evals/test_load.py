"""Keeping requests in flight."""

from __future__ import annotations

import asyncio
import gc
import json
import sys

import pytest

from evals.errors import EndpointGoneError, WorkloadError
from evals.load import Load, loop_factory, run_at_once
from evals.record import Request
from evals.stream_client import StreamClient
from tests.evals.truth_server import TruthServer


def chats(count: int, max_tokens: int = 5) -> list[Request]:
    return [
        Request(
            id=f"r{number}",
            path="/v1/chat/completions",
            body=json.dumps(
                {
                    "messages": [{"role": "user", "content": f"{number} please"}],
                    "stream": True,
                    "max_tokens": max_tokens,
                    "stream_options": {"include_usage": True},
                }
            ).encode(),
        )
        for number in range(count)
    ]


def load(server: TruthServer, count: int, concurrency: int, max_tokens: int = 5) -> Load:
    async def run() -> Load:
        async with StreamClient(server.base_url) as client:
            return await run_at_once(client, chats(count, max_tokens), concurrency)

    return asyncio.run(run())


def test_a_burst_is_in_flight_at_once_on_connections_opened_before() -> None:
    # In a process of its own: the times of client and server are not to wait for each other's interpreter.
    with TruthServer(process=True, ttft_ms=300, gap_ms=5) as server:
        done = load(server, 8, 8)
        truths = {truth.id: truth for truth in server.requests}
    assert [record.id for record in done.records] == [f"r{number}" for number in range(8)]
    assert (done.check.peak_in_flight, done.check.asked_in_flight, done.check.connections) == (8, 8, 8)
    assert done.check.chunks == sum(record.chunks for record in done.records) > 8 * 5
    assert done.check.send_spread_ms is not None
    for record in done.records:
        truth = truths[record.id]
        assert (record.status, record.output_tokens, record.connection_reused) == ("ok", 5, True)
        assert record.sent_ns is not None
        assert record.done_ns is not None
        assert done.started_ns <= record.sent_ns <= truth.received_ns <= truth.sent_ns[0] <= record.chunk_ns[0]
        assert all(sent <= arrived for sent, arrived in zip(truth.sent_ns, record.chunk_ns, strict=True))
        assert record.done_ns <= done.ended_ns


def test_no_more_than_the_concurrency_is_in_flight_and_all_requests_are_sent() -> None:
    with TruthServer(gap_ms=5) as server:
        done = load(server, 7, 2)
        assert server.connections == 2
    assert [record.status for record in done.records] == ["ok"] * 7
    assert done.check.peak_in_flight == 2


def test_fewer_requests_than_the_concurrency_ask_for_no_more() -> None:
    with TruthServer(ttft_ms=300) as server:
        done = load(server, 2, 16)
        assert server.connections == 2
    assert (done.check.peak_in_flight, done.check.asked_in_flight) == (2, 2)


def test_a_failed_request_is_a_record_among_the_others() -> None:
    with TruthServer(per_request={1: {"status": 500}, 3: {"cut_after": 2}}) as server:
        done = load(server, 5, 1)
    assert [record.status for record in done.records] == ["ok", "failed", "ok", "failed", "ok"]
    assert done.records[1].reason == "http 500: the server minds"


def test_no_requests_are_an_empty_load() -> None:
    with TruthServer() as server:
        done = load(server, 0, 4)
    assert (done.records, done.check.verdict, done.check.chunks) == ((), "ok", 0)


def test_a_concurrency_below_one_is_refused() -> None:
    with TruthServer() as server, pytest.raises(WorkloadError, match="at least 1"):
        load(server, 1, 0)


def test_an_endpoint_that_takes_no_connection_is_gone_before_anything_is_sent() -> None:
    with TruthServer() as server:
        pass
    with pytest.raises(EndpointGoneError):
        load(server, 3, 3)


def test_garbage_collection_is_off_in_the_window_and_restored_after_it() -> None:
    seen: list[tuple[bool, int]] = []

    class Watching(StreamClient):
        async def stream(self, request: Request):
            seen.append((gc.isenabled(), gc.get_freeze_count()))
            return await super().stream(request)

    async def run(server: TruthServer) -> bool:
        async with Watching(server.base_url) as client:
            await run_at_once(client, chats(2), 2)
            return client.defer

    with TruthServer() as server:
        assert asyncio.run(run(server)) is False
    assert [enabled for enabled, _ in seen] == [False, False]
    assert all(frozen > 0 for _, frozen in seen)
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_cancelling_a_load_closes_its_streams_and_restores_the_collector() -> None:
    async def run(server: TruthServer) -> None:
        async with StreamClient(server.base_url) as client:
            task = asyncio.create_task(run_at_once(client, chats(3), 3))
            while len(server.requests) < 3:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.disconnected.wait, 10)

    with TruthServer(stall_after=1) as server:
        asyncio.run(run(server))
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


async def _loop_name() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_the_fast_loop_is_used_where_it_is_installed() -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert runner.run(_loop_name()).startswith("uvloop")


def test_without_uvloop_the_standard_loop_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert runner.run(_loop_name()).startswith("asyncio")
