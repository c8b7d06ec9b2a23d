import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.cells import e2e_ms, itl_ms, key_of, measure_cell, summarise, summarise_weighted, tpot_ms, ttft_ms
from evals.workload import CellKey
from tests.evals.records import failed, known, record


def burst(concurrency=2, input_len=512, output_len=4):
    return CellKey(concurrency=concurrency, input_len=input_len, output_len=output_len, prompt=None, repeat=1)


SPEED_KEY = CellKey(concurrency=1, input_len=None, output_len=256, prompt="code", repeat=1)


def test_a_cell_has_the_figures_worked_out_by_hand():
    # A: first token after 50 ms, then one each 10 ms. B: sent 2 ms later, first after 98 ms, then 20 ms each.
    records = [
        record("1-0", sent_ms=0, at_ms=(50, 60, 70, 80)),
        record("1-1", sent_ms=2, at_ms=(100, 120, 140, 160), cached_tokens=3),
    ]
    cell = measure_cell(burst(), records)
    assert cell.status == "ok"
    assert cell.reason is None
    assert cell.requests.ok == 2
    assert known(cell.ttft_ms).model_dump() == pytest.approx({"mean": 74, "p50": 74, "p90": 93.2, "p99": 97.52, "n": 2})
    assert known(cell.itl_ms).n == 6
    assert known(cell.itl_ms).mean == pytest.approx(15.0)
    assert cell.icl_ms == cell.itl_ms
    assert known(cell.tpot_ms).mean == pytest.approx((10 + 20) / 2)
    assert cell.decode_tok_s == pytest.approx((100 + 50) / 2)
    assert known(cell.e2e_ms).mean == pytest.approx((80 + 158) / 2)
    assert cell.e2e_tok_s == pytest.approx((4 / 0.080 + 4 / 0.158) / 2)
    # 8 tokens from the first send at 0 to the last token at 160 ms.
    assert cell.total_output_tok_s == pytest.approx(8 / 0.160)
    assert cell.cached_tokens == 3
    assert cell.input_tokens.model_dump() == {"asked": 512, "got": 512.0, "mismatched": 0}
    assert cell.output_tokens.model_dump() == {"asked": 4, "got": 4.0, "mismatched": 0}
    assert set(cell.missing) == {"drafted", "accepted"}


def test_chunks_of_several_tokens_count_once_for_each_token():
    # 4 tokens at 50 ms, 2 at 60, 3 at 90: gaps of 10/2 twice and of 30/3 three times.
    one = record(at_ms=(50, 60, 90), tokens=(4, 2, 3))
    assert itl_ms(one) == [(5.0, 2), (10.0, 3)]
    assert known(measure_cell(burst(1, output_len=9), [one]).itl_ms) == summarise([5.0, 5.0, 10.0, 10.0, 10.0])
    # The first chunk's four tokens are no part of the decoding time.
    assert tpot_ms(one) == pytest.approx(40 / 5)
    cell = measure_cell(burst(1, output_len=9), [one])
    assert known(cell.icl_ms).mean == pytest.approx(20.0)
    assert known(cell.icl_ms).n == 2
    assert cell.decode_tok_s == pytest.approx(125.0)


def test_a_chunk_without_a_token_leaves_its_time_to_the_next_one():
    assert itl_ms(record(at_ms=(50, 60, 70), tokens=(1, 0, 2))) == [(10.0, 2)]


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 8)), min_size=1, max_size=30), st.integers(0, 10**9))
def test_ttft_and_all_token_gaps_add_up_to_the_end_to_end_time(chunks, sent):
    now, at, tokens = sent, [], []
    for gap, count in chunks:
        now += gap
        at.append(now)
        tokens.append(count)
    one = record(tokens=tuple(tokens), sent_ns=sent, chunk_ns=at)
    assert known(ttft_ms(one)) + sum(gap * count for gap, count in itl_ms(one)) == pytest.approx(e2e_ms(one), abs=1e-6)


def test_hidden_token_counts_null_the_per_token_figures_with_the_reason():
    cell = measure_cell(burst(1), [record(tokens=None)])
    assert (cell.itl_ms, cell.tpot_ms, cell.decode_tok_s) == (None, None, None)
    assert cell.missing["itl_ms"] == cell.missing["decode_tok_s"] == "the chunks hide their tokens"
    assert known(cell.icl_ms).n == 3
    assert cell.total_output_tok_s == pytest.approx(4 / 0.080)


def test_a_stream_without_usage_has_no_token_speeds_and_says_why():
    cell = measure_cell(burst(1), [record(output_tokens=None, input_tokens=None)])
    assert (cell.e2e_tok_s, cell.total_output_tok_s, cell.output_tokens.got) == (None, None, None)
    assert cell.missing["total_output_tok_s"] == "the server's stream told no usage"
    assert cell.missing["input_tokens"] == "the server's stream told no usage"
    assert known(cell.ttft_ms).p50 == 50.0


def test_a_reply_of_one_chunk_has_a_first_token_and_no_pace():
    cell = measure_cell(burst(1, output_len=1), [record(at_ms=(50,), tokens=(1,))])
    assert known(cell.ttft_ms).mean == 50.0
    assert cell.decode_tok_s is None
    assert cell.missing["tpot_ms"] == "no request had more than one chunk"


def test_an_ok_reply_without_any_token_is_null_and_not_zero():
    cell = measure_cell(burst(1), [record(at_ms=(), tokens=(), output_tokens=0)])
    assert (cell.ttft_ms, cell.e2e_ms, cell.total_output_tok_s) == (None, None, None)
    assert cell.missing["ttft_ms"] == "no token arrived"


def test_failures_are_counted_and_the_commonest_names_the_cell():
    records = [record("a"), failed("http 503: busy"), failed("http 503: busy"), failed("timeout: 600 s")]
    cell = measure_cell(burst(4), records)
    assert cell.status == "failed"
    assert cell.reason == "3 of 4 requests failed: http 503: busy"
    assert cell.failures == {"http 503: busy": 2, "timeout: 600 s": 1}
    # The one that succeeded still has its figures.
    assert cell.requests.ok == 1
    assert known(cell.ttft_ms).n == 1


def test_one_failure_in_a_hundred_is_still_an_ok_cell():
    cell = measure_cell(burst(100), [*(record(str(i)) for i in range(99)), failed()])
    assert (cell.status, cell.requests.failed) == ("ok", 1)
    cell = measure_cell(burst(99), [*(record(str(i)) for i in range(98)), failed()])
    assert cell.status == "failed"


def test_a_failed_request_counts_in_the_time_and_not_in_the_tokens():
    cut = failed(sent_ns=0, chunk_ns=[50_000_000, 400_000_000], output_tokens=2)
    assert measure_cell(burst(2), [record(), cut]).total_output_tok_s == pytest.approx(4 / 0.400)


def test_a_cell_of_failures_only_has_no_figure():
    cell = measure_cell(burst(1), [failed()])
    assert cell.ttft_ms is None
    assert cell.total_output_tok_s is None
    assert set(cell.missing.values()) == {"no request succeeded"}


def test_other_lengths_than_asked_are_counted_where_they_must_be_exact():
    short = record(at_ms=(50, 60), tokens=(1, 1), input_tokens=510)
    cell = measure_cell(burst(2), [record(), short])
    assert cell.input_tokens.model_dump() == {"asked": 512, "got": 511.0, "mismatched": 1}
    assert cell.output_tokens.model_dump() == {"asked": 4, "got": 3.0, "mismatched": 1}


def test_a_chat_reply_may_end_before_its_limit():
    cell = measure_cell(SPEED_KEY, [record()])
    assert cell.output_tokens.model_dump() == {"asked": 256, "got": 4.0, "mismatched": 0}
    assert cell.input_tokens.model_dump() == {"asked": None, "got": 512.0, "mismatched": 0}


def test_half_a_surrogate_pair_in_a_servers_words_does_not_stop_the_recording():
    cell = measure_cell(burst(1), [failed("http 500: \ud83d" + "x" * 5000)])
    assert len(cell.model_dump_json()) < 3000


def test_a_cell_keeps_its_key_through_json():
    cell = measure_cell(burst(), [record()])
    assert key_of(type(cell).model_validate_json(cell.model_dump_json())) == burst()


def test_no_samples_have_no_distribution():
    assert summarise([]) is None


def test_an_end_token_without_a_chunk_does_not_speed_up_the_pace():
    # Three chunks 100 ms apart, and a fourth token in the usage that nothing shows.
    one = record(at_ms=(100, 200, 300), tokens=(1, 1, 1), output_tokens=4)
    assert tpot_ms(one) == pytest.approx(100.0)
    cell = measure_cell(burst(1), [one])
    assert known(cell.tpot_ms).mean == pytest.approx(known(cell.itl_ms).mean)
    assert cell.decode_tok_s == pytest.approx(10.0)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 8)), min_size=2, max_size=30))
def test_the_pace_of_a_request_is_the_mean_of_its_token_gaps(chunks):
    at = list(itertools.accumulate(gap for gap, _ in chunks))
    one = record(tokens=tuple(count for _, count in chunks), chunk_ns=at)
    gaps = summarise_weighted(itl_ms(one))
    assert tpot_ms(one) == (None if gaps is None else pytest.approx(gaps.mean))


def test_marks_of_many_tokens_cost_no_memory_for_each():
    one = record(at_ms=(50, 60, 70), tokens=(1, 5_000_000, 4_999_999))
    tracemalloc.start()
    try:
        cell = measure_cell(burst(1), [one])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert known(cell.itl_ms).n == 9_999_999
    assert peak < 2_000_000


def test_a_chat_reply_above_its_limit_is_a_mismatch():
    cell = measure_cell(SPEED_KEY, [record(output_tokens=300), record()])
    assert cell.output_tokens.mismatched == 1


def test_a_usage_of_no_token_beside_chunks_is_null_and_not_zero():
    cell = measure_cell(burst(2), [record(output_tokens=0), record()])
    assert cell.total_output_tok_s is None
    cell = measure_cell(burst(1), [record(output_tokens=0)])
    assert (cell.e2e_tok_s, cell.total_output_tok_s) == (None, None)
    why = "the server's usage told 0 tokens for a reply that has some"
    assert cell.missing["e2e_tok_s"] == cell.missing["total_output_tok_s"] == why


def test_a_count_that_was_not_taken_is_the_reason_of_a_missing_figure():
    cell = measure_cell(burst(1), [record(output_tokens=None, tokens=None, usage_reason="no such count")])
    assert cell.missing["output_tokens"] == cell.missing["total_output_tok_s"] == "no such count"
