"""The client's judgement of itself."""

from __future__ import annotations

import asyncio
import time

import pytest

from evals.record import RequestRecord
from evals.self_check import ClientCheck, SelfCheck, judged, merge, peak_in_flight


def span(sent_ms: float | None, done_ms: float | None, chunks: int = 10) -> RequestRecord:
    return RequestRecord(
        id="r",
        status="ok" if sent_ms is not None else "failed",
        sent_ns=None if sent_ms is None else int(sent_ms * 1e6),
        done_ns=None if done_ms is None else int(done_ms * 1e6),
        chunks=chunks,
    )


def watched(*records: RequestRecord, asked: int, work: float = 0.0) -> ClientCheck:
    async def window() -> ClientCheck:
        check = SelfCheck()
        check.start()
        time.sleep(work)  # noqa: ASYNC251  # holding up the loop is the subject
        await asyncio.sleep(0)
        check.stop()
        return check.result(records, asked_in_flight=asked, connections=3, decoding_cpu_s=0.5)

    return asyncio.run(window())


def test_the_send_spread_is_that_of_the_requests_started_together() -> None:
    check = watched(span(0, 50), span(3, 60), span(50, 90), asked=2)
    assert check.send_spread_ms == 3.0
    assert (check.peak_in_flight, check.asked_in_flight, check.connections, check.chunks) == (2, 2, 3, 30)


def test_a_single_request_has_no_send_spread() -> None:
    assert watched(span(0, 50), span(50, 90), asked=1).send_spread_ms is None


def test_the_cost_per_chunk_includes_decoding_after_the_window() -> None:
    check = watched(span(0, 50, chunks=1000), asked=1)
    assert check.cpu_ms_per_1k_chunks is not None
    assert check.cpu_ms_per_1k_chunks >= 500


def test_without_chunks_the_cost_per_chunk_is_unknown_and_not_zero() -> None:
    check = watched(span(None, None, chunks=0), asked=1)
    assert (check.cpu_ms_per_1k_chunks, check.chunks) == (None, 0)


def test_a_loop_that_was_held_up_makes_the_client_the_limit() -> None:
    check = watched(span(0, 50), asked=1, work=0.2)
    assert check.loop_lag_p99_ms is not None
    assert check.loop_lag_p99_ms > 100
    # A probe every 20 ms would have met 180, 160, 140 ... ms of delay: the long block counts as often as it lasted.
    assert check.loop_lag_p50_ms is not None
    assert check.loop_lag_p50_ms > 50
    assert check.verdict == "client_limited"
    assert check.reasons[0].startswith("its loop was ")


def test_a_window_shorter_than_the_probe_has_no_lag() -> None:
    check = watched(asked=1)
    assert (check.loop_lag_p50_ms, check.loop_lag_p99_ms, check.peak_in_flight) == (None, None, 0)
    assert check.cpu_share is None, "of a window of microseconds the client always fills all"


def test_cpu_of_the_window_is_measured() -> None:
    async def window() -> ClientCheck:
        check = SelfCheck()
        check.start()
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass
        check.stop()
        check.stop()
        return check.result([span(0, 1, chunks=1000)], asked_in_flight=1)

    check = asyncio.run(window())
    assert check.cpu_ms_per_1k_chunks is not None
    assert check.cpu_ms_per_1k_chunks >= 100
    assert check.cpu_share is not None
    assert 0 < check.cpu_share <= 1.5


@pytest.mark.parametrize(
    ("check", "limited"),
    [
        (ClientCheck(cpu_share=0.8, loop_lag_p99_ms=5.0, send_spread_ms=10.0, asked_in_flight=64), False),
        (ClientCheck(cpu_share=0.81), True),
        (ClientCheck(loop_lag_p99_ms=5.1), True),
        (ClientCheck(send_spread_ms=10.1, asked_in_flight=64), True),
        (ClientCheck(send_spread_ms=19.0, asked_in_flight=128), False),
        (ClientCheck(send_spread_ms=10.1, asked_in_flight=2), True),
        (ClientCheck(peak_in_flight=61, asked_in_flight=64), False),
        (ClientCheck(peak_in_flight=60, asked_in_flight=64), True),
        (ClientCheck(), False),
    ],
)
def test_each_limit_is_judged(check: ClientCheck, limited: bool) -> None:
    check = judged(check)
    assert (check.verdict, len(check.reasons)) == (("client_limited", 1) if limited else ("ok", 0))


def test_failed_requests_are_not_held_against_the_client() -> None:
    few = ClientCheck(peak_in_flight=1, asked_in_flight=64)
    assert judged(few, any_failed=True).verdict == "ok"
    assert judged(few).verdict == "client_limited"


def test_requests_that_follow_each_other_are_not_in_flight_together() -> None:
    assert peak_in_flight([span(0, 10), span(10, 20), span(5, 10)]) == 2
    assert peak_in_flight([span(None, None), span(0, None)]) == 0


def test_a_units_check_has_the_worst_of_its_cells_and_the_cost_weighted_by_chunks() -> None:
    merged = merge(
        [
            ClientCheck(
                cpu_share=0.1,
                cpu_ms_per_1k_chunks=40.0,
                loop_lag_p50_ms=0.1,
                loop_lag_p99_ms=9.0,
                send_spread_ms=None,
                connections=4,
                peak_in_flight=2,
                asked_in_flight=4,
                chunks=1000,
                verdict="client_limited",
                reasons=("late", "few"),
            ),
            ClientCheck(
                cpu_share=0.5,
                cpu_ms_per_1k_chunks=10.0,
                loop_lag_p50_ms=0.3,
                loop_lag_p99_ms=1.0,
                send_spread_ms=2.0,
                connections=64,
                peak_in_flight=64,
                asked_in_flight=64,
                chunks=3000,
                reasons=("late",),
            ),
            ClientCheck(),
        ]
    )
    assert merged == ClientCheck(
        cpu_share=0.5,
        cpu_ms_per_1k_chunks=17.5,
        loop_lag_p50_ms=0.3,
        loop_lag_p99_ms=9.0,
        send_spread_ms=2.0,
        connections=64,
        peak_in_flight=2,
        asked_in_flight=4,
        chunks=4000,
        verdict="client_limited",
        reasons=("late", "few"),
    )


def test_nothing_to_merge_is_an_unknown_check() -> None:
    assert merge([]) == ClientCheck()
