"""The stream parser: stamps and bytes in, a record out."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals import sse
from evals.record import RequestRecord
from evals.sse import read_stream
from rigs.serving import StreamKeys


def event(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def usage(output: float, prompt: int = 9, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output, **more}


def usage_event(output: float, **more: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": usage(output), **more}).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
STOP = event(finish="stop")
LENGTH = event(finish="length")
DONE = b"data: [DONE]\n\n"


def read(*pieces: bytes | tuple[int, bytes], keys: StreamKeys | None = None) -> RequestRecord:
    """The record of these pieces; one without a time arrives at 10 times its position."""
    record = RequestRecord(id="r", status="failed")
    stamped = [piece if isinstance(piece, tuple) else (index * 10, piece) for index, piece in enumerate(pieces)]
    read_stream(stamped, keys or StreamKeys(), record)
    return record


def test_a_plain_chat_stream_is_read_whole() -> None:
    record = read(ROLE, event({"content": "Hel"}), event({"content": "lo"}), LENGTH, usage_event(2), DONE)
    assert record == RequestRecord(
        id="r",
        status="ok",
        chunk_ns=[10, 20],
        chunk_tokens=[1, 1],
        input_tokens=9,
        output_tokens=2,
        finish_reason="length",
        text="Hello",
        chunks=5,
    )


@pytest.mark.parametrize("delta", [{"role": "assistant", "content": None}, {"content": ""}, {"tool_calls": []}])
def test_a_chunk_without_words_is_no_token(delta: dict[str, Any]) -> None:
    assert read(event(delta), event({"content": "x"}), STOP, DONE).chunk_ns == [10]


def test_white_space_is_a_token() -> None:
    assert read(event({"content": "\n"}), STOP, DONE).chunk_ns == [0]


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_counts_as_tokens_and_is_kept_apart_from_the_text(key: str) -> None:
    record = read(event({key: "hm"}), event({"content": "so"}), STOP, usage_event(2), DONE)
    assert (record.chunk_ns, record.reasoning, record.text) == ([0, 10], "hm", "so")


def test_reasoning_under_both_names_counts_once() -> None:
    record = read(event({"reasoning": "hm", "reasoning_content": "hm"}), STOP, usage_event(1), DONE)
    assert (record.reasoning, len(record.chunk_ns)) == ("hm", 1)


def test_an_events_time_is_the_arrival_of_the_bytes_that_complete_it() -> None:
    whole = event({"content": "x"})
    record = read((100, whole[:20]), (200, whole[20:-1]), (300, whole[-1:] + event({"content": "y"}) + STOP + DONE))
    assert record.chunk_ns == [300, 300]


def test_a_stream_cut_anywhere_even_inside_a_character_reads_the_same() -> None:
    chunk = {"choices": [{"delta": {"content": "añ€😀"}, "finish_reason": "stop"}]}
    body = b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n" + DONE
    records = [read(body[:cut], body[cut:]) for cut in range(1, len(body))]
    assert {(record.text, record.status) for record in records} == {("añ€😀", "ok")}


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard_is_understood(line_end: bytes) -> None:
    body = (ROLE + event({"content": "x"}) + STOP + DONE).replace(b"\n", line_end)
    assert read(body).text == "x"
    assert read(*[bytes([byte]) for byte in body]).text == "x"


@pytest.mark.parametrize(
    "wrapped",
    [
        b": ping\n\ndata: %s\n\n",
        b": ping\ndata: %s\n\n",
        b"data:%s\n\n",
        b"event: message\nid: 7\nretry: 10\ndata: %s\n\n",
        b"\xef\xbb\xbfdata: %s\n\n",
        b"\n\n\ndata: %s\n\n",
    ],
)
def test_comments_names_and_missing_blanks_change_nothing(wrapped: bytes) -> None:
    chunk = event({"content": "x"}).removeprefix(b"data: ").strip()
    record = read(wrapped % chunk, STOP, DONE)
    assert (record.status, record.text, record.chunks) == ("ok", "x", 2)


def test_data_over_two_lines_is_one_event() -> None:
    record = read(b'data: {"choices": [{"delta":\ndata: {"content": "x"}}]}\n\n', STOP, DONE)
    assert record.text == "x"


def test_text_completions_are_read() -> None:
    record = read(
        b'data: {"choices": [{"text": "one"}]}\n\n',
        b'data: {"choices": [{"text": " two", "finish_reason": "length"}]}\n\n',
        usage_event(2),
        DONE,
    )
    assert (record.text, record.chunk_ns, record.chunk_tokens) == ("one two", [0, 10], [1, 1])


@pytest.mark.parametrize(
    "last",
    [
        event(finish="length", usage=usage(1)) + DONE,
        event(finish="length", usage=None) + usage_event(1) + DONE,
        event(finish="length") + b'data: {"usage": {"prompt_tokens": 9, "completion_tokens": 1}}\n\n' + DONE,
    ],
)
def test_usage_is_found_wherever_it_stands(last: bytes) -> None:
    record = read(event({"content": "x"}, usage=None), last)
    assert (record.input_tokens, record.output_tokens) == (9, 1)


def test_without_usage_the_output_tokens_are_unknown() -> None:
    record = read(event({"content": "x"}), event({"content": "y"}), STOP, DONE)
    assert record.status == "ok"
    assert (record.output_tokens, record.input_tokens, record.chunk_tokens) == (None, None, None)
    assert record.chunk_tokens_reason == "the server sent no usage and does not say what each chunk holds"


def test_tokens_per_chunk_come_from_usage_that_grows() -> None:
    record = read(
        event({"role": "assistant", "content": ""}, usage=usage(0)),
        event({"content": "a"}, usage=usage(3)),
        event({"content": ""}, usage=usage(5)),
        event({"content": "b"}, usage=usage(8)),
        event(finish="stop", usage=usage(9)),
        DONE,
    )
    assert (record.chunk_tokens, record.output_tokens) == ([3, 5], 9)


def test_a_constant_usage_beside_each_chunk_tells_nothing_of_the_chunks() -> None:
    chunks = [event({"content": "a"}, usage=usage(8)) for _ in range(2)]
    record = read(*chunks, LENGTH, DONE)
    assert record.chunk_tokens is None
    assert record.chunk_tokens_reason == "8 tokens in 2 chunks, and the server does not say what each holds"


def test_tokens_per_chunk_come_from_token_ids() -> None:
    def with_ids(text: str, *ids: int, finish: str | None = None) -> bytes:
        choice = {"delta": {"content": text}, "token_ids": ids, "finish_reason": finish}
        return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    record = read(
        with_ids("a", 1, 2), with_ids("", 3), with_ids("b", 4), with_ids("", 5, finish="stop"), usage_event(5)
    )
    assert record.chunk_tokens == [2, 2]


def test_token_ids_that_do_not_add_up_to_usage_are_not_believed() -> None:
    chunk = b'data: {"choices": [{"delta": {"content": "a"}, "token_ids": [1]}]}\n\n'
    assert read(chunk, chunk, LENGTH, usage_event(6), DONE).chunk_tokens is None


def test_the_end_token_without_a_chunk_leaves_one_token_to_each_chunk() -> None:
    record = read(event({"content": "a"}), event({"content": "b"}), STOP, usage_event(3), DONE)
    assert (record.chunk_tokens, record.output_tokens) == ([1, 1], 3)


def test_a_token_missing_from_a_reply_of_fixed_length_is_not_taken_for_an_end_token() -> None:
    assert read(event({"content": "a"}), event({"content": "b"}), LENGTH, usage_event(3), DONE).chunk_tokens is None


def test_tool_calls_are_joined_by_index() -> None:
    def call(index: int, arguments: str, **more: Any) -> bytes:
        return event({"tool_calls": [{"index": index, "function": {"arguments": arguments, **more}}]})

    record = read(
        event({"tool_calls": [{"index": 0, "id": "c0", "type": "function", "function": {"name": "f"}}]}),
        call(0, '{"a": '),
        call(1, "{}", name="g"),
        call(0, "1}", name="f"),
        event(finish="tool_calls"),
        DONE,
    )
    assert record.tool_calls == [
        {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": None, "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert record.chunk_ns == [0, 10, 20, 30]


def test_unnumbered_tool_calls_are_told_apart_by_their_names() -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    record = read(event({"tool_calls": calls}), event(finish="tool_calls"), DONE)
    assert [call["function"]["name"] for call in record.tool_calls] == ["f", "g"]


def test_arguments_that_are_no_string_are_kept_as_sent() -> None:
    record = read(event({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": {"a": 1}}}]}), STOP, DONE)
    assert record.tool_calls[0]["function"]["arguments"] == {"a": 1}


def test_an_engines_own_figures_are_read_from_whichever_chunk_carries_them() -> None:
    keys = StreamKeys(
        drafted="timings.draft_n",
        accepted="timings.draft_n_accepted",
        server_prefill_ms="timings.prompt_ms",
        server_decode_ms="timings.deep.predicted_ms",
    )
    record = read(
        event({"content": "x"}, timings={"prompt_ms": 12.5}),
        event(finish="length", timings={"draft_n": 50, "draft_n_accepted": 40, "deep": {"predicted_ms": 80}}),
        usage_event(1, timings=None),
        DONE,
        keys=keys,
    )
    assert (record.drafted, record.accepted, record.server_prefill_ms, record.server_decode_ms) == (50, 40, 12.5, 80)


def test_cached_tokens_of_zero_and_unknown_cached_tokens_are_told_apart() -> None:
    def cached(details: object) -> int | None:
        last = {"choices": [], "usage": usage(1, prompt_tokens_details=details)}
        return read(event({"content": "x"}), STOP, b"data: " + json.dumps(last).encode() + b"\n\n", DONE).cached_tokens

    assert [cached({"cached_tokens": 0}), cached({"cached_tokens": 7}), cached(None), cached(3)] == [0, 7, None, None]


@pytest.mark.parametrize("count", [True, -1, 1.5, "7", [], 1e400])
def test_a_figure_that_is_no_count_is_unknown(count: object) -> None:
    record = read(event({"content": "x"}), STOP, usage_event(1, n=count), DONE, keys=StreamKeys(drafted="n"))
    assert (record.status, record.drafted) == ("ok", None)


@pytest.mark.parametrize(
    "error",
    [
        b'data: {"error": {"code": 500, "message": "Context size has been exceeded."}}\n\n',
        b'data: {"object": "error", "message": "Context size has been exceeded."}\n\n',
        b'event: error\ndata: {"message": "Context size has been exceeded."}\n\n',
        b"event: error\ndata: Context size has been exceeded.\n\n",
    ],
)
def test_an_error_inside_a_stream_is_a_failure_in_the_servers_words(error: bytes) -> None:
    record = read(event({"content": "x"}), error, DONE)
    assert (record.status, record.reason) == ("failed", "stream: Context size has been exceeded.")
    assert record.text == "x"


def test_a_stream_without_done_is_whole_where_it_has_a_finish_reason() -> None:
    assert read(event({"content": "x"}), STOP).status == "ok"


def test_a_stream_without_finish_reason_is_whole_where_it_has_done() -> None:
    assert read(event({"content": "x"}), DONE).status == "ok"


def test_a_stream_that_just_ends_is_a_failure_that_keeps_what_came() -> None:
    record = read(ROLE, event({"content": "x"}))
    assert (record.status, record.text, record.chunk_ns) == ("failed", "x", [10])
    assert record.reason == "stream: ended without finish_reason or [DONE] after 1 chunks with content"


def test_a_stream_of_nothing_is_a_failure() -> None:
    assert read(ROLE, DONE).reason == "stream: ended with [DONE], but brought neither content nor a finish_reason"


def test_an_empty_reply_with_a_finish_reason_is_fine_and_has_no_first_token() -> None:
    record = read(ROLE, STOP, usage_event(1), DONE)
    assert (record.status, record.chunk_ns, record.chunk_tokens) == ("ok", [], None)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_reply_that_the_server_broke_off_is_a_failure(reason: str) -> None:
    assert read(event({"content": "x"}), event(finish=reason), DONE).status == "failed"


def test_a_last_event_without_its_blank_line_counts_and_a_torn_one_does_not() -> None:
    assert read(event({"content": "x"}), DONE.strip()).status == "ok"
    assert read(event({"content": "x"}), STOP.strip()).finish_reason == "stop"
    assert read(event({"content": "x"}), STOP[:-9]).reason == (
        "stream: ended without finish_reason or [DONE] after 1 chunks with content"
    )


@pytest.mark.parametrize("junk", [b"data: {nonsense\n\n", b"data: [1]\n\n", b'data: {"choices": [7]}\n\n'])
def test_an_event_that_cannot_be_read_is_a_failure_and_no_crash(junk: bytes) -> None:
    record = read(event({"content": "x"}), junk, STOP, DONE)
    assert record.status == "failed"
    assert junk[6:-2].decode() in (record.reason or "")


def test_text_of_another_type_is_a_failure_and_no_crash() -> None:
    assert read(event({"content": 5}), STOP, DONE).status == "failed"


def test_an_answer_that_is_no_stream_says_what_it_is() -> None:
    assert "instead of streaming" in (read(b'{"choices": [{"message": {}}]}').reason or "")
    assert read(b'{"error": {"message": "no such model"}}').reason == "stream: no such model"
    assert "Welcome" in (read(b"<html><body>Welcome</body></html>").reason or "")
    assert read(b"").reason == "stream: the reply was empty"


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    assert read(b'data: {"choices": [{"delta": {"content": "a\xffb"}}]}\n\n', STOP, DONE).text == "a\ufffdb"


def test_a_surrogate_pair_split_over_two_events_is_one_character() -> None:
    halves = [b'data: {"choices": [{"delta": {"content": "\\u%s"}}]}\n\n' % half for half in (b"d83d", b"de00")]
    assert read(*halves, STOP, DONE).text == "😀"
    assert read(halves[0], STOP, DONE).text == "\ufffd"


def test_the_standard_parser_reads_the_same_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    body = [ROLE, event({"content": "é"}), b": c\n\n", STOP, usage_event(2), DONE]
    fast = read(*body)
    monkeypatch.setattr(sse, "_fast_loads", json.loads)
    assert read(*body) == fast


def test_reading_says_whether_the_stream_was_closed_by_done() -> None:
    record = RequestRecord(id="r", status="failed")
    assert read_stream([(0, STOP + DONE)], StreamKeys(), record)
    assert not read_stream([(0, STOP)], StreamKeys(), record)


@given(
    words=st.lists(st.text(min_size=1), min_size=1, max_size=12),
    gaps=st.lists(st.integers(0, 10**10), min_size=200, max_size=200),
    cuts=st.sets(st.integers(1, 3000), max_size=40),
    crlf=st.booleans(),
)
def test_any_chunking_gives_the_text_and_times_that_add_up(
    words: list[str], gaps: list[int], cuts: set[int], *, crlf: bool
) -> None:
    events = [ROLE, *[event({"content": word}) for word in words], LENGTH, usage_event(len(words)), DONE]
    if crlf:
        events = [each.replace(b"\n", b"\r\n") for each in events]
    body = b"".join(events)
    edges = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
    sent_ns = 5
    arrivals = [sent_ns + sum(gaps[: index + 1]) for index in range(len(edges) - 1)]
    pieces = [(at, body[low:high]) for at, low, high in zip(arrivals, edges, edges[1:], strict=False)]

    record = read(*pieces)

    assert record.status == "ok"
    assert record.text == "".join(words)
    assert record.chunk_tokens == [1] * len(words)
    for index, at in enumerate(record.chunk_ns):
        # With CRLF an event is complete at its second CR, one byte before its end.
        end = len(b"".join(events[: index + 2])) - crlf
        assert at == next(arrival for arrival, edge in zip(arrivals, edges[1:], strict=True) if edge >= end)
    ttft = record.chunk_ns[0] - sent_ns
    between = [later - earlier for earlier, later in zip(record.chunk_ns, record.chunk_ns[1:], strict=False)]
    assert ttft + sum(between) == record.chunk_ns[-1] - sent_ns
    assert min([ttft, *between]) >= 0


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 100_000,
        b'{"choices":' * 100_000,
        b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"choices": [{"delta": {"tool_calls": [{"index": Infinity, "id": "a"}]}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{"index": 1e999, "id": "a"}]}}]}',
        b'{"choices": [{"delta": {"tool_calls": [{"id": "a", "function": {"arguments": '
        + b"[" * 300
        + b"]" * 300
        + b"}}]}}]}",
    ],
    ids=lambda payload: payload[:70].decode(),
)
@pytest.mark.parametrize("frame", [b"data: %s\n\n", b"event: error\ndata: %s\n\n", b"data: %s", b"%s"])
def test_a_hostile_event_is_that_requests_failure(payload: bytes, frame: bytes) -> None:
    record = read(frame % payload)
    assert record.status == "failed"
    assert record.reason
    assert len(record.reason) < 600
    assert len(json.dumps(asdict(record))) < 10_000


@pytest.mark.parametrize("count", [10**4000, 10**307, 10_000_001, -1, 1e300])
def test_a_count_that_no_reply_can_have_is_not_taken_and_the_record_says_so(count: float) -> None:
    record = read(event({"content": "a"}), event({"content": "b"}), STOP, usage_event(count), DONE)
    assert (record.status, record.output_tokens, record.chunk_tokens) == ("ok", None, None)
    assert record.usage_reason == "the usage's completion_tokens is no count from 0 to 10000000"
    assert record.chunk_tokens_reason == record.usage_reason


def test_a_finish_reason_that_is_no_word_is_cut() -> None:
    record = read(b'data: {"choices": [{"delta": {}, "finish_reason": ' + b"[" * 900 + b"]" * 900 + b"}]}\n\n")
    assert len(record.finish_reason or "") <= 100


def test_growing_marks_beyond_every_count_are_not_taken() -> None:
    marks = [event({"content": "x"}, usage=usage(mark * 10**307)) for mark in (1, 2, 3)]
    record = read(*marks, STOP, DONE)
    assert (record.status, record.output_tokens, record.chunk_tokens) == ("ok", None, None)


@pytest.mark.parametrize("count", [10**4000, -(10**4000), float("nan"), 1e300])
def test_times_that_the_server_cannot_mean_are_not_taken(count: float) -> None:
    keys = StreamKeys(drafted="timings.n", server_decode_ms="timings.ms")
    record = read(event({"content": "a"}), STOP, usage_event(1, timings={"n": count, "ms": count}), DONE, keys=keys)
    assert (record.status, record.drafted, record.server_decode_ms) == ("ok", None, None)


@pytest.mark.parametrize(
    "body",
    [
        [b":\n"] * 300_000,
        [event({"tool_calls": [{"function": {"arguments": "x" * 50}}]})] * 20_000,
        [event({"tool_calls": [{"id": str(n)}, {"function": {"arguments": "x"}}]}) for n in range(20_000)],
    ],
    ids=["an event of many lines", "arguments in many fragments", "many calls"],
)
def test_reading_takes_time_in_proportion_to_the_body(body: list[bytes]) -> None:
    started = time.process_time()
    read(*body, STOP, DONE)
    assert time.process_time() - started < 6  # quadratic, the first of these takes minutes


def test_an_event_that_ends_between_two_pieces_has_the_time_of_the_second() -> None:
    whole = event({"content": "x"})
    record = read((1, whole[:-1]), (2, b""), (3, b"\n"), (4, STOP + DONE))
    assert (record.status, record.chunk_ns) == ("ok", [3])
