"""The streaming client against a server that knows what it sent and when."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import json
import socket
import ssl
import struct
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from evals import http_connection, stream_client
from evals.errors import EndpointGoneError, EvalError, WorkloadError
from evals.record import Request, RequestRecord
from evals.stream_client import StreamClient
from rigs.serving import StreamKeys
from tests.evals.canned import canned
from tests.evals.truth_server import TEMPLATE_TOKENS, TruthServer

Runner = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    """Runs a coroutine on each of the two loops that the client meets."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_it(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(work)

    return run_it


def chat(
    name: str = "r", max_tokens: int = 4, *, timeout_s: float = 30.0, idle_timeout_s: float = 30.0, **body: Any
) -> Request:
    body = {
        "messages": [{"role": "user", "content": f"{name} says hello"}],
        "stream": True,
        "max_tokens": max_tokens,
        "stream_options": {"include_usage": True},
        **body,
    }
    return Request(
        id=name,
        path="/v1/chat/completions",
        body=json.dumps(body).encode(),
        timeout_s=timeout_s,
        idle_timeout_s=idle_timeout_s,
    )


async def stream_all(url: str, *requests: Request, **options: Any) -> list[RequestRecord]:
    """The requests one after the other over one client."""
    async with StreamClient(url, **options) as client:
        await client.open(1)
        return [await client.stream(request) for request in requests]


def test_a_stream_is_recorded_with_exact_counts_and_times_that_agree_with_the_server(run: Runner) -> None:
    with TruthServer(ttft_ms=10, gap_ms=2) as server:
        [record] = run(stream_all(server.base_url, chat("one", 5)))
        [truth] = server.requests
    assert (record.status, record.reason, record.http_status) == ("ok", None, 200)
    assert (record.output_tokens, record.chunk_tokens) == (5, [1] * 5)
    assert record.input_tokens == truth.prompt_tokens == 3 + TEMPLATE_TOKENS
    assert (record.text, record.finish_reason) == (" the of and to in", "length")
    assert record.connection_reused is True
    assert record.queued_ns <= record.sent_ns <= truth.received_ns
    # Both processes read the same clock: nothing arrives before it was sent, nor after the next was sent and received.
    assert all(sent <= arrived for sent, arrived in zip(truth.sent_ns, record.chunk_ns, strict=True))
    assert record.chunk_ns == sorted(record.chunk_ns)
    assert record.chunk_ns[0] - record.sent_ns >= 10_000_000
    assert record.chunk_ns[-1] <= record.done_ns
    assert truth.id == "one"


def test_a_role_chunk_that_comes_early_is_not_the_first_token(run: Runner) -> None:
    with TruthServer(ttft_ms=30, role_early_ms=0) as server:
        [record] = run(stream_all(server.base_url, chat()))
        [truth] = server.requests
    assert truth.role_ns is not None
    assert record.chunk_ns[0] >= truth.sent_ns[0] > truth.role_ns
    assert len(record.chunk_ns) == 4


def test_several_tokens_in_a_chunk_are_counted_from_usage(run: Runner) -> None:
    continuous = {"include_usage": True, "continuous_usage_stats": True}
    with TruthServer(tokens_per_chunk=4, first_chunk_tokens=3) as server:
        plain, told = run(stream_all(server.base_url, chat("a", 12), chat("b", 12, stream_options=continuous)))
    assert (plain.output_tokens, len(plain.chunk_ns), plain.chunk_tokens) == (12, 4, None)
    assert plain.chunk_tokens_reason
    assert (told.output_tokens, told.chunk_tokens) == (12, [3, 4, 4, 1])


@pytest.mark.parametrize("usage", ["finish", "nulls"])
def test_usage_is_read_wherever_the_server_puts_it(run: Runner, usage: str) -> None:
    with TruthServer(usage=usage) as server:
        [record] = run(stream_all(server.base_url, chat()))
    assert (record.status, record.output_tokens) == ("ok", 4)


def test_a_server_without_usage_leaves_the_tokens_unknown(run: Runner) -> None:
    with TruthServer(usage="none") as server:
        [record] = run(stream_all(server.base_url, chat()))
    assert (record.status, record.output_tokens, record.chunk_tokens, len(record.chunk_ns)) == ("ok", None, None, 4)


def test_engine_figures_and_cached_tokens_reach_the_record(run: Runner) -> None:
    keys = StreamKeys(drafted="timings.draft_n", accepted="timings.draft_n_accepted")
    with TruthServer(timings=True) as server:
        first, again = run(stream_all(server.base_url, chat("x"), chat("x"), stream_keys=keys))
    assert (first.drafted, first.accepted, first.cached_tokens) == (50, 40, 0)
    assert again.cached_tokens == 3


@pytest.mark.parametrize(
    "switches",
    [
        {"comments": True},
        {"crlf": True},
        {"no_done": True},
        {"no_finish": True},
        {"utf8_split": True},
        {"token_ids": True},
        {"http10": True},
        {"close": True},
        {"http10": True, "no_done": True},
    ],
    ids="+".join,
)
def test_odd_but_whole_streams_are_fine(run: Runner, switches: dict[str, Any]) -> None:
    with TruthServer(**switches) as server:
        records = run(stream_all(server.base_url, chat("a"), chat("b")))
    for record in records:
        assert (record.status, record.reason, record.output_tokens, record.chunk_tokens) == ("ok", None, 4, [1] * 4)
        assert record.text == ("é" * 14 if "utf8_split" in switches else " the of and to")


def test_reasoning_and_tool_calls_count_as_tokens(run: Runner) -> None:
    with TruthServer(reasoning_chunks=2, per_request={1: {"tool_call": ["add", '{"a": 1, "b": 2}']}}) as server:
        thought, called = run(stream_all(server.base_url, chat("a"), chat("b")))
    assert (thought.reasoning, thought.text, len(thought.chunk_ns)) == (" the of", " and to", 4)
    assert called.tool_calls == [
        {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    ]
    assert (called.finish_reason, len(called.chunk_ns)) == ("tool_calls", 4)


def test_text_completions_are_streamed_too(run: Runner) -> None:
    body = {"prompt": [5, 6, 7], "stream": True, "max_tokens": 2, "stream_options": {"include_usage": True}}
    with TruthServer() as server:
        [record] = run(
            stream_all(server.base_url, Request(id="t", path="/v1/completions", body=json.dumps(body).encode()))
        )
    assert (record.status, record.input_tokens, record.output_tokens, record.text) == ("ok", 3, 2, " the of")


@pytest.mark.parametrize(
    ("switches", "reason"),
    [
        ({"status": 400}, "http 400: the server minds"),
        ({"status": 429}, "http 429: the server minds"),
        ({"status": 500, "error_html": True}, "http 500: The engine & all died"),
        ({"status": 302}, "http 302: a redirect to /elsewhere is not followed; use that address"),
        (
            {"context_tokens": 10},
            "http 400: request (14 tokens) exceeds the available context size (10 tokens)",
        ),
        ({"error_after": 2}, "stream: Context size has been exceeded."),
        ({"error_after": 0}, "stream: Context size has been exceeded."),
        ({"cut_after": 2}, "connection: the server closed it in the middle of its answer"),
        ({"cut_after": 2, "http10": True}, "stream: ended without finish_reason or [DONE] after 2 chunks with content"),
        ({"cut_after": -1}, "connection: the server closed it without an answer"),
    ],
    ids=lambda value: "+".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_a_request_that_the_server_fails_is_a_record_with_the_reason(
    run: Runner, switches: dict[str, Any], reason: str
) -> None:
    with TruthServer(per_request={0: switches, 1: switches if switches.get("cut_after") == -1 else {}}) as server:
        failed, *later = run(stream_all(server.base_url, chat("a"), chat("b"), chat("c")))
    assert (failed.status, failed.reason) == ("failed", reason)
    assert failed.sent_ns is not None
    assert len(failed.chunk_ns) == max(0, switches.get("cut_after", switches.get("error_after", 0)))
    assert later[-1].status == "ok", "one failure must not spoil the next request"


def test_an_answer_without_streaming_is_refused_since_it_has_no_first_token(run: Runner) -> None:
    with TruthServer() as server:
        [record] = run(stream_all(server.base_url, chat(stream=False)))
    assert record.status == "failed"
    assert "instead of streaming" in record.reason


def test_a_stream_that_falls_silent_is_ended_and_keeps_what_came(run: Runner) -> None:
    with TruthServer(stall_after=2) as server:
        [record] = run(stream_all(server.base_url, chat(idle_timeout_s=0.2)))
        assert server.disconnected.wait(10)
    assert (record.status, record.reason, len(record.chunk_ns)) == ("failed", "stalled: no byte for 0.2 s", 2)
    assert record.done_ns - record.chunk_ns[-1] >= 200_000_000


def test_a_server_that_never_answers_is_a_stall(run: Runner) -> None:
    with TruthServer(stall_after=-1) as server:
        [record] = run(stream_all(server.base_url, chat(idle_timeout_s=0.1)))
    assert (record.reason, record.http_status, record.chunk_ns) == ("stalled: no byte for 0.1 s", None, [])


def test_a_stream_that_goes_on_too_long_is_ended(run: Runner) -> None:
    with TruthServer(gap_ms=20) as server:
        [record] = run(stream_all(server.base_url, chat(max_tokens=1000, timeout_s=0.5)))
    assert (record.status, record.reason) == ("failed", "timeout: not finished within 0.5 s")
    assert len(record.chunk_ns) > 0


def test_one_request_may_run_out_of_time_while_another_goes_on(run: Runner) -> None:
    async def both(url: str) -> list[RequestRecord]:
        async with StreamClient(url) as client:
            slow = chat("slow", max_tokens=30)
            late = chat("late", 1000, timeout_s=0.1)
            return list(await asyncio.gather(client.stream(slow), client.stream(late)))

    with TruthServer(gap_ms=10) as server:
        slow, late = run(both(server.base_url))
    assert (slow.status, slow.output_tokens) == ("ok", 30)
    assert late.reason == "timeout: not finished within 0.1 s"


def test_nobody_listening_is_a_failed_request_and_an_error_on_opening(run: Runner, closed_port: int) -> None:
    url = f"http://127.0.0.1:{closed_port}"

    async def refused() -> RequestRecord:
        async with StreamClient(url) as client:
            with pytest.raises(EndpointGoneError, match=f"{url}: connection: cannot connect .* refused"):
                await client.open(2)
            with pytest.raises(EndpointGoneError, match=r"GET .*/v1/models: connection: cannot connect"):
                await client.get_json("/v1/models")
            return await client.stream(chat())

    record = run(refused())
    assert record.reason == f"connection: cannot connect to 127.0.0.1:{closed_port}: Connection refused"
    assert (record.status, record.sent_ns, record.done_ns, record.connection_reused) == ("failed", None, None, False)


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def test_cancelling_a_stream_closes_its_connection_and_the_client_goes_on(run: Runner) -> None:
    async def cancelled(server: TruthServer) -> RequestRecord:
        async with StreamClient(server.base_url) as client:
            task = asyncio.create_task(client.stream(chat("endless")))
            await asyncio.to_thread(_wait_for, lambda: server.requests)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.disconnected.wait, 10)
            return await client.stream(chat("next"))

    with TruthServer(per_request={0: {"stall_after": 1}}) as server:
        assert run(cancelled(server)).status == "ok"


def _wait_for(ready: Callable[[], object]) -> None:
    for _ in range(1000):
        if ready():
            return
        time.sleep(0.01)
    raise AssertionError


def test_connections_are_opened_beforehand_and_kept_alive(run: Runner) -> None:
    async def many(url: str) -> tuple[list[RequestRecord], int]:
        async with StreamClient(url) as client:
            await client.open(3)
            records = [await client.stream(chat(str(number))) for number in range(2)]
            records += await asyncio.gather(*[client.stream(chat(f"g{number}")) for number in range(3)])
            return records, client.connections_opened

    with TruthServer() as server:
        records, opened = run(many(server.base_url))
        assert server.connections == opened == 3
    assert all(record.connection_reused for record in records)


def test_opening_fewer_connections_closes_the_surplus(run: Runner) -> None:
    async def shrink(url: str) -> list[RequestRecord]:
        async with StreamClient(url) as client:
            await client.open(8)
            await client.open(1)
            return list(await asyncio.gather(client.stream(chat("a")), client.stream(chat("b"))))

    with TruthServer() as server:
        records = run(shrink(server.base_url))
    assert sorted(record.connection_reused for record in records) == [False, True]


def test_a_kept_connection_that_the_server_closed_is_replaced_and_the_record_says_so(run: Runner) -> None:
    with TruthServer(hang_up=True) as server:
        records = run(stream_all(server.base_url, *[chat(str(number)) for number in range(5)]))
        assert len(server.requests) == 5
    assert [record.status for record in records] == ["ok"] * 5
    assert [record.connection_reused for record in records] == [True, False, False, False, False]


def test_a_request_is_repeated_once_and_only_on_a_kept_connection(run: Runner) -> None:
    with TruthServer(cut_after=-1) as server:
        kept, fresh = run(stream_all(server.base_url, chat("kept"), chat("fresh")))
        assert [truth.id for truth in server.requests] == ["kept", "kept", "fresh"]
    assert kept.connection_reused is fresh.connection_reused is False
    assert kept.reason == fresh.reason == "connection: the server closed it without an answer"


def test_a_connection_reset_before_the_request_could_be_written_is_replaced(run: Runner) -> None:
    async def reset(listener: socket.socket) -> RequestRecord:
        async with StreamClient(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            await client.open(1)
            server_side, _ = listener.accept()
            server_side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            server_side.close()
            # The loop has had no turn to notice: the write itself meets the reset. Nobody serves the fresh connection.
            return await client.stream(chat(idle_timeout_s=0.1))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        record = run(reset(listener))
    assert (record.reason, record.connection_reused) == ("stalled: no byte for 0.1 s", False)


def test_an_answer_that_broke_off_is_not_repeated(run: Runner) -> None:
    with TruthServer(cut_after=1) as server:
        run(stream_all(server.base_url, chat()))
        assert len(server.requests) == 1


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_as_people_write_it(suffix: str) -> None:
    with TruthServer() as server:
        [record] = asyncio.run(stream_all(server.base_url + suffix, chat()))
        assert record.status == "ok"
        assert server.requests[0].path == "/v1/chat/completions"


@pytest.mark.parametrize("suffix", ["/api", "/api/v1"])
def test_a_path_before_v1_is_kept(suffix: str) -> None:
    with TruthServer() as server:
        [record] = asyncio.run(stream_all(server.base_url + suffix, chat()))
        assert record.status == "ok"
        assert server.requests[0].path == "/api/v1/chat/completions"


@pytest.mark.parametrize(
    "url",
    ["localhost:8080", "ftp://host", "http://", "http://host:port", "http://user:secret@host", "http://h\u00f6st"],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_way_to_write_it(url: str) -> None:
    with pytest.raises(WorkloadError, match="http://host:port") as caught:
        StreamClient(url)
    assert "secret" not in str(caught.value)


def test_headers_are_sent_and_one_that_would_break_the_request_is_refused() -> None:
    with TruthServer() as server:
        asyncio.run(stream_all(server.base_url, chat(), headers={"Authorization": "Bearer k"}))
        assert server.requests[0].headers["authorization"] == "Bearer k"
        assert server.requests[0].headers["host"] == server.base_url.removeprefix("http://")
    with pytest.raises(WorkloadError) as caught:
        StreamClient("http://host", headers={"Authorization": "k\r\nevil: 1"})
    assert "evil" not in str(caught.value)


def test_a_path_that_cannot_be_sent_is_a_failed_request() -> None:
    with TruthServer() as server:
        [record] = asyncio.run(stream_all(server.base_url, Request(id="r", path="/v1/a b", body=b"{}")))
        assert server.requests == []
    assert record.status == "failed"
    assert (record.reason or "").startswith("request: The path '/v1/a b' cannot be sent")


def test_single_questions_are_answered_as_json_or_raise(run: Runner) -> None:
    async def ask(url: str) -> None:
        async with StreamClient(url) as client:
            assert (await client.get_json("/v1/models"))["data"][0]["id"] == "truth"
            assert len((await client.post_json("/tokenize", {"content": "one two, three"}))["tokens"]) == 4
            with pytest.raises(EvalError, match=r"GET http://127.*/nowhere: http 404: no such path: /nowhere"):
                await client.get_json("/nowhere")
            with pytest.raises(EndpointGoneError, match=r"POST .*: (timeout|stalled)"):
                await client.post_json("/v1/chat/completions", json.loads(chat().body), timeout_s=0.1)

    with TruthServer(stall_after=-1) as server:
        run(ask(server.base_url))


def test_deferred_replies_are_decoded_when_asked(run: Runner) -> None:
    async def deferred(url: str) -> None:
        async with StreamClient(url, defer=True) as client:
            first, second = [await client.stream(chat(name)) for name in ("a", "b")]
            assert (first.chunk_ns, first.reason) == ([], "stream: not decoded yet")
            client.finish(first)
            assert (first.status, first.reason, len(first.chunk_ns)) == ("ok", None, 4)
            assert second.chunk_ns == []
            client.finish_all()
            client.finish(first)
            assert (second.status, second.output_tokens) == ("ok", 4)

    with TruthServer() as server:
        run(deferred(server.base_url))


def test_deferred_replies_beyond_the_memory_bound_are_decoded_at_once(run: Runner) -> None:
    async def deferred(url: str) -> list[RequestRecord]:
        async with StreamClient(url, defer=True, deferred_bytes=3000) as client:
            return [(await client.stream(chat(str(number)))) for number in range(4)]

    async def seen_before_the_end(url: str) -> list[str]:
        async with StreamClient(url, defer=True, deferred_bytes=3000) as client:
            return [(await client.stream(chat(str(number)))).status for number in range(4)]

    with TruthServer() as server:
        assert run(seen_before_the_end(server.base_url)) == ["failed", "ok", "ok", "ok"]
        assert [record.status for record in run(deferred(server.base_url))] == ["ok"] * 4


def test_a_body_larger_than_the_sockets_buffers_arrives_whole(run: Runner) -> None:
    words = "word " * 1_000_000
    with TruthServer() as server:
        [record] = run(stream_all(server.base_url, chat(messages=[{"role": "user", "content": words}])))
    assert (record.status, record.input_tokens) == ("ok", 1_000_000 + TEMPLATE_TOKENS)


def test_a_reply_that_never_stops_growing_is_ended(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MAX_BODY_BYTES", 1 << 20)
    with TruthServer() as server:
        [record] = run(stream_all(server.base_url, chat(max_tokens=20_000)))
    assert record.reason == "http: the reply is larger than 1 MiB, the cost of its pieces included"


_EVENTS = b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"garbage", "http: not a well-formed answer"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: ws\r\nconnection: upgrade\r\n\r\n", "http: the server wants to change"),
        (b"HTTP/1.1 204 None\r\n\r\n", "stream: the reply was empty"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "stream: the reply was empty"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n" + _EVENTS, "connection: the server closed it in the middle"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\nx",
            "http 200: the answer is compressed",
        ),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", "http 503: no message"),
        (b"HTTP/1.1 200 OK\r\n", "connection: the server closed it in the middle"),
    ],
)
def test_answers_that_are_no_stream_fail_with_a_reason(run: Runner, answer: bytes, reason: str) -> None:
    [record] = run(canned(answer, lambda url: stream_all(url, chat())))
    assert record.status == "failed"
    assert record.reason.startswith(reason)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%sdata: [DONE]\n\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%sHTTP/1.1 408 Late\r\nx: y\r\ncontent-length: 1\r\n\r\nx",
    ],
    ids=[
        "informational answer first",
        "closed after DONE without the end of the body",
        "a second answer that nobody asked for",
    ],
)
def test_answers_that_are_odd_but_whole_are_fine(run: Runner, answer: bytes) -> None:
    length = len(_EVENTS) + (14 if b"DONE" in answer else 0)
    [record] = run(canned(answer % (length, _EVENTS), lambda url: stream_all(url, chat())))
    assert (record.status, record.reason, record.text) == ("ok", None, "x")


def test_https_is_spoken_and_an_unknown_certificate_is_refused(run: Runner, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    with TruthServer(ssl=serving) as server:
        records = run(stream_all(server.base_url, chat("a"), chat("b"), ssl_context=trusting))
        with pytest.raises(EndpointGoneError, match="certificate"):
            run(stream_all(server.base_url, chat()))
    assert [(record.status, record.output_tokens, record.connection_reused) for record in records] == [
        ("ok", 4, True)
    ] * 2
    assert all(record.queued_ns <= record.sent_ns <= record.chunk_ns[0] for record in records)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed one for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rigbench test")])
    now = dt.datetime.now(dt.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(cert.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.parametrize(
    ("head", "limit", "reason"),
    [
        (b"content-type: text/event-stream\r\n", "MAX_BODY_BYTES", "larger than 1 MiB"),
        (b"content-type: application/json\r\n", "MAX_ANSWER_BYTES", "larger than 1 MiB"),
    ],
)
def test_a_body_in_tiny_pieces_is_ended_by_what_the_pieces_cost(
    run: Runner, monkeypatch: pytest.MonkeyPatch, head: bytes, limit: str, reason: str
) -> None:
    monkeypatch.setattr(http_connection, limit, 1 << 20)
    answer = b"HTTP/1.1 200 OK\r\n%stransfer-encoding: chunked\r\n\r\n" % head + b"1\r\n:\r\n" * 20_000
    [record] = run(canned(answer, lambda url: stream_all(url, chat())))
    assert reason in record.reason


def test_what_is_no_stream_may_be_less_large_than_a_stream() -> None:
    assert http_connection.MAX_ANSWER_BYTES < http_connection.MAX_BODY_BYTES


@pytest.mark.parametrize("status", [200, 500])
def test_deep_nesting_is_an_answer_that_cannot_be_read(run: Runner, status: int) -> None:
    answer = b"HTTP/1.1 %d X\r\ncontent-length: 100000\r\n\r\n" % status + b"[" * 100_000

    async def ask(url: str) -> RequestRecord:
        async with StreamClient(url) as client:
            with pytest.raises(EvalError, match=r"the answer is no JSON|http 500"):
                await client.get_json("/v1/models")
            with pytest.raises(EvalError, match=r"the answer is no JSON|http 500"):
                await client.post_json("/tokenize", {})
            return await client.stream(chat())

    record = run(canned(answer, ask))
    assert record.status == "failed"
    assert len(record.reason) < 600


def test_a_reply_that_trips_the_reading_itself_fails_that_request_alone(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trip(*_: object) -> bool:
        raise MemoryError

    with TruthServer() as server:
        whole = run(stream_all(server.base_url, chat("a")))
        monkeypatch.setattr(stream_client, "read_stream", trip)
        tripped = run(stream_all(server.base_url, chat("b"), chat("c")))
    assert [record.status for record in whole] == ["ok"]
    assert [record.reason for record in tripped] == ["stream: the reply could not be decoded (MemoryError)"] * 2
    assert [(record.id, record.http_status) for record in tripped] == [("b", 200), ("c", 200)]
