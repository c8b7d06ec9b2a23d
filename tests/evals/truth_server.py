"""An OpenAI-compatible streaming server that knows the truth about what it sent, and when.

    with TruthServer(ttft_ms=20, gap_ms=5) as server:
        ...                       # measure server.base_url
        server.requests           # list[Truth]: per request, what was asked and when each chunk left, CLOCK_MONOTONIC

It runs on a loop and a thread of its own; `TruthServer(process=True, ...)` runs it in a child process instead, so that
client and server do not share an interpreter lock where timing matters. All switches are the fields of `Switches`;
`per_request={2: {"status": 500}}` sets some of them for the third request only (counted from 0, streams only), and
`replies={"how many": {"text": "18"}}` for requests whose last message holds those words.

Paths: POST /v1/chat/completions and /v1/completions (streaming), POST /tokenize, GET /v1/models, /health, /props,
/truth.
Tokens are words and signs (`tokenize`). A chat prompt has TEMPLATE_TOKENS more than its contents. `cached_tokens` is
the longest prefix of the prompt that an earlier prompt had, unless the request says `"cache_prompt": false`. A reply
has `max_tokens` tokens, or `natural_tokens` where that is less and the request does not say `"ignore_eos": true`.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import httptools

TEMPLATE_TOKENS = 7
WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not")


@dataclass(frozen=True, kw_only=True)
class Switches:
    # The schedule: every stream follows it from the moment its request is fully read.
    ttft_ms: float = 0.0
    gap_ms: float = 0.0
    tokens_per_chunk: int = 1
    first_chunk_tokens: int | None = None
    slow_first_ms: float = 0.0  # on top of ttft_ms, for the server's first stream
    natural_tokens: int = 1 << 30
    context_tokens: int = 1 << 30  # prompt and reply; more is a 400 as llama.cpp words it
    # What the stream looks like.
    role_early_ms: float | None = None  # a role-only chunk this long after the request; else with the first content
    reasoning_chunks: int = 0
    reasoning_key: str = "reasoning_content"
    tool_call: tuple[str, str] | None = None  # name, arguments: sent in fragments instead of text
    text: str | None = None  # this reply, cut off at max_tokens
    tools: bool | None = None  # what /props says of the chat template; None: there is no such path
    usage: str = "asked"  # asked (as stream_options says) | none | finish (on that chunk) | nulls (on all before)
    token_ids: bool = False
    timings: bool = False  # llama.cpp's `timings` with draft_n and draft_n_accepted
    no_done: bool = False
    no_finish: bool = False
    comments: bool = False
    crlf: bool = False
    utf8_split: bool = False  # words of two-byte characters, torn between two writes
    # What goes wrong.
    status: int = 200  # else: that error (or redirect) instead of a stream
    error_html: bool = False
    error_after: int | None = None  # content chunks before `data: {"error": ...}` in the stream
    cut_after: int | None = None  # content chunks before the connection breaks; -1: before any answer
    stall_after: int | None = None  # content chunks before silence; -1: before any answer
    # What the connection does.
    http10: bool = False
    close: bool = False  # announced by `Connection: close`
    hang_up: bool = False  # after the reply, unannounced


@dataclass(kw_only=True)
class Truth:
    """One streamed request. Times in ns of CLOCK_MONOTONIC."""

    id: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    connection: int
    received_ns: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    role_ns: int | None = None
    sent_ns: list[int] = field(default_factory=list[int])
    """When each chunk with content was handed to the socket."""
    finished: bool = False


def tokenize(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) % 50_000 for word in re.findall(r"\w+|[^\w\s]", text)]


def pieces(text: str) -> list[str]:
    """The tokens of a scripted reply, which joined are the reply."""
    return re.findall(r"\s*\w+|\s*[^\w\s]|\s+", text)


class TruthServer:
    def __init__(
        self,
        *,
        process: bool = False,
        per_request: dict[int, dict[str, Any]] | None = None,
        replies: dict[str, dict[str, Any]] | None = None,
        port: int = 0,
        ssl: Any = None,
        **switches: Any,
    ) -> None:
        self.switches = Switches(**switches)
        self.per_request = per_request or {}
        self.replies = replies or {}
        self.port = port
        self.connections = 0
        self.disconnected = threading.Event()
        """Set when a client left a stream before its end."""
        self._ssl = ssl
        self._truths: list[Truth] = []
        self._prefixes: set[int] = set()
        self._open: set[_Connection] = set()
        self._process: subprocess.Popen[str] | None = None
        self._wants_process = process
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[Truth]:
        if self._process is None:
            return list(self._truths)
        with urllib.request.urlopen(f"{self.base_url}/truth", timeout=10) as answer:
            return [Truth(**truth) for truth in json.load(answer)]

    def __enter__(self) -> Self:
        if self._wants_process:
            options = {"per_request": self.per_request, "replies": self.replies, **asdict(self.switches)}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.evals.truth_server", json.dumps(options)],
                stdin=subprocess.PIPE,  # its end is the child's end, so no child outlives the tests
                stdout=subprocess.PIPE,
                text=True,
            )
            assert self._process.stdout is not None
            self.port = int(self._process.stdout.readline())
            return self
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="truth-server")
        self._thread.start()
        assert started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    async def _serve(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        listener = await self._loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self.port, backlog=1024, ssl=self._ssl
        )
        self.port = listener.sockets[0].getsockname()[1]
        started.set()
        await self._stopping.wait()
        for _ in range(50):  # turns of the loop, in which connections just accepted come up and all are lost
            for connection in tuple(self._open):
                connection.abort()
            await asyncio.sleep(0)
        listener.close()  # last: Python 3.11 leaks a connection that it accepts while closing

    def cached(self, tokens: list[int]) -> int:
        """How much of the prompt was seen before; from now on all of it was."""
        hit = key = 0
        for count, token in enumerate(tokens, 1):
            key = hash((key, token))
            if key in self._prefixes:
                hit = count
            self._prefixes.add(key)
        return hit


class _Connection(asyncio.Protocol):
    def __init__(self, server: TruthServer) -> None:
        self.server = server
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.connections += 1
        self.number = self.server.connections
        self.server._open.add(self)
        self.start()

    def start(self) -> None:
        self.parser: Any = httptools.HttpRequestParser(self)
        self.url, self.headers, self.body = "", {}, b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server._open.discard(self)
        self.parser = None
        if self.task is not None and not self.task.done():
            self.task.cancel()
            self.server.disconnected.set()

    def abort(self) -> None:
        self.transport.abort()

    def on_url(self, url: bytes) -> None:
        self.url += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        received_ns = time.monotonic_ns()
        url, headers, body = self.url, self.headers, json.loads(self.body or b"{}")
        self.url, self.headers, self.body = "", {}, b""
        server = self.server
        if url.endswith("/v1/models"):
            self.answer({"object": "list", "data": [{"id": "truth", "object": "model"}]})
        elif url.endswith("/health"):
            self.answer({"status": "ok"})
        elif url.endswith("/truth"):
            self.answer([asdict(truth) for truth in server._truths])
        elif url.endswith("/tokenize"):
            self.answer({"tokens": tokenize(body["content"])})
        elif url.endswith("/props") and server.switches.tools is not None:
            self.answer({"chat_template_caps": {"supports_tools": server.switches.tools}})
        elif url.endswith("/completions"):
            switches = replace(server.switches, **server.per_request.get(len(server._truths), {}))
            asked = str((body.get("messages") or [{}])[-1].get("content"))
            for words, reply in server.replies.items():
                if words in asked:
                    switches = replace(switches, **reply)
            if not server._truths:
                switches = replace(switches, ttft_ms=switches.ttft_ms + switches.slow_first_ms)
            truth = Truth(
                id=headers.get("x-request-id", ""),
                path=url,
                body=body,
                headers=headers,
                connection=self.number,
                received_ns=received_ns,
            )
            server._truths.append(truth)
            self.task = asyncio.get_running_loop().create_task(_Stream(self, truth, switches).run())
        else:
            self.answer({"error": {"message": f"no such path: {url}"}}, 404)

    def answer(self, value: Any, status: int = 200, more: str = "", kind: str = "application/json") -> None:
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{more}content-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)


class _Stream:
    """One streamed reply."""

    def __init__(self, connection: _Connection, truth: Truth, switches: Switches) -> None:
        self.connection = connection
        self.truth = truth
        self.switches = switches
        self.chat = truth.path.endswith("/chat/completions")
        self.counted = 0  # tokens sent so far
        self.begun = False

    async def run(self) -> None:
        switches, truth, transport = self.switches, self.truth, self.connection.transport
        self._count_prompt()
        if not self._refused():
            if await self._ended(-1):
                return
            sizes = self._chunk_sizes()
            start = truth.received_ns / 1e9
            if switches.role_early_ms is not None:
                await self._until(start + switches.role_early_ms / 1e3)
                truth.role_ns = time.monotonic_ns()
                self._write(self._event({"role": "assistant", "content": ""}))
            for index, size in enumerate(sizes):
                if await self._ended(index):
                    return
                await self._until(start + (switches.ttft_ms + index * switches.gap_ms) / 1e3)
                delta = self._delta(index, size, len(sizes))
                self.counted += size
                data = self._event(delta, ids=size)
                if index == 0 and switches.role_early_ms is None:
                    data = self._event({"role": "assistant", "content": None}) + data
                if switches.comments:
                    data = b": a comment\n\n" + data
                truth.sent_ns.append(time.monotonic_ns())
                self._write(data)
            if await self._ended(len(sizes)):
                return
            self._write_end()
            truth.finished = True
        if switches.http10 or switches.close or switches.hang_up:
            transport.close()

    def _count_prompt(self) -> None:
        truth, body = self.truth, self.truth.body
        if self.chat:
            tokens = [token for message in body["messages"] for token in tokenize(message["content"])]
        else:
            tokens = body["prompt"] if isinstance(body["prompt"], list) else tokenize(body["prompt"])
        if body.get("cache_prompt") is not False:
            truth.cached_tokens = self.connection.server.cached(tokens)
        truth.prompt_tokens = len(tokens) + (TEMPLATE_TOKENS if self.chat else 0)
        natural = 1 << 30 if body.get("ignore_eos") else self.switches.natural_tokens
        if self.switches.text is not None:
            natural = len(pieces(self.switches.text))
        truth.output_tokens = min(body.get("max_tokens", 16), natural)

    def _refused(self) -> bool:
        switches, truth, answer = self.switches, self.truth, self.connection.answer
        needed = truth.prompt_tokens + truth.body.get("max_tokens", 16)
        if needed > switches.context_tokens:
            message = f"request ({needed} tokens) exceeds the available context size ({switches.context_tokens} tokens)"
            answer({"error": {"code": 400, "message": message, "type": "exceed_context_size_error"}}, 400)
        elif 300 <= switches.status < 400:
            answer({}, switches.status, "location: /elsewhere\r\n")
        elif switches.status >= 400 and switches.error_html:
            page = (
                "<html><head><title>Oops</title><style>p {}</style></head><body><p>The engine &amp; all died</p></body>"
            )
            answer(page, switches.status, kind="text/html")
        elif switches.status >= 400:
            answer({"error": {"message": "the server minds", "code": switches.status}}, switches.status)
        elif not truth.body.get("stream"):
            choice = {
                "message": {"role": "assistant", "content": " the" * truth.output_tokens},
                "finish_reason": "stop",
            }
            answer({"choices": [choice], "usage": self._usage(truth.output_tokens)})
        else:
            return False
        truth.finished = True
        return True

    async def _ended(self, index: int) -> bool:
        """Whether the stream breaks off, as the switches say, before content chunk `index`."""
        switches = self.switches
        if switches.error_after == index:
            self._write(self._line({"error": {"code": 500, "message": "Context size has been exceeded."}}))
            self._raw(b"0\r\n\r\n")
            return True
        if switches.cut_after == index:
            self.connection.transport.close()
            self.truth.finished = True
            return True
        if switches.stall_after == index:
            await asyncio.Event().wait()  # until the client gives up
        return False

    def _chunk_sizes(self) -> list[int]:
        left, sizes = self.truth.output_tokens, list[int]()
        while left > 0:
            first = not sizes and self.switches.first_chunk_tokens
            sizes.append(min(left, first or self.switches.tokens_per_chunk))
            left -= sizes[-1]
        return sizes

    def _delta(self, index: int, size: int, of: int) -> dict[str, Any]:
        if self.switches.tool_call is not None:
            name, arguments = self.switches.tool_call
            cut = len(arguments) * index // of, len(arguments) * (index + 1) // of
            call: dict[str, Any] = {"index": 0, "function": {"arguments": arguments[cut[0] : cut[1]]}}
            if index == 0:
                call |= {"id": "call-1", "type": "function"}
                call["function"]["name"] = name
            return {"tool_calls": [call]}
        if self.switches.text is not None:
            said = pieces(self.switches.text)[self.counted : self.counted + size]
            return {"content": "".join(said)}
        words = "".join(f" {WORDS[(self.counted + k) % len(WORDS)]}" for k in range(size))
        if self.switches.utf8_split:
            words = "é" * len(words)
        return {self.switches.reasoning_key if index < self.switches.reasoning_chunks else "content": words}

    def _event(self, delta: dict[str, Any], *, finish: str | None = None, ids: int = 0) -> bytes:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        choice |= {"delta": delta} if self.chat else {"text": delta.get("content") or ""}
        if self.switches.token_ids and ids:
            choice["token_ids"] = list(range(ids))
        chunk: dict[str, Any] = {"id": self.truth.id, "object": "chat.completion.chunk", "choices": [choice]}
        if self._options().get("continuous_usage_stats"):
            chunk["usage"] = self._usage(self.counted)
        elif self.switches.usage == "nulls":
            chunk["usage"] = None
        elif self.switches.usage == "finish" and finish:
            chunk["usage"] = self._usage(self.truth.output_tokens)
        return self._line(chunk)

    def _options(self) -> dict[str, Any]:
        return self.truth.body.get("stream_options") or {}

    def _usage(self, output_tokens: int) -> dict[str, Any]:
        prompt = self.truth.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output_tokens,
            "total_tokens": prompt + output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.truth.cached_tokens},
        }

    def _write_end(self) -> None:
        truth, switches = self.truth, self.switches
        data = b""
        if not switches.no_finish:
            natural = truth.output_tokens < truth.body.get("max_tokens", 16)
            reason = "tool_calls" if switches.tool_call else "stop" if natural else "length"
            data += self._event({}, finish=reason)
        last: dict[str, Any] = {"id": truth.id, "choices": []}
        if switches.timings:
            last["timings"] = {"draft_n": 50, "draft_n_accepted": 40, "prompt_ms": 12.5, "predicted_ms": 80.0}
        if switches.usage in ("asked", "nulls") and self._options().get("include_usage"):
            last["usage"] = self._usage(truth.output_tokens)
        if len(last) > 2:
            data += self._line(last)
        self._write(data + (b"" if switches.no_done else b"data: [DONE]\n\n"))
        if not switches.http10:
            self._raw(b"0\r\n\r\n")

    def _line(self, chunk: dict[str, Any]) -> bytes:
        return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"

    def _write(self, data: bytes) -> None:
        if not self.begun:
            self.begun = True
            head = "HTTP/1.0 200 OK" if self.switches.http10 else "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"
            close = "\r\nconnection: close" if self.switches.close else ""
            self._raw(f"{head}{close}\r\ncontent-type: text/event-stream\r\n\r\n".encode())
        if self.switches.crlf:
            data = data.replace(b"\n", b"\r\n")
        tear = data.find("é".encode()) + 1 if self.switches.utf8_split else 0
        for part in (data[:tear], data[tear:]):
            if part and self.switches.http10:
                self._raw(part)
            elif part:
                self._raw(b"%x\r\n%s\r\n" % (len(part), part))

    def _raw(self, data: bytes) -> None:
        if not self.connection.transport.is_closing():
            self.connection.transport.write(data)

    async def _until(self, moment_s: float) -> None:
        delay_s = moment_s - time.monotonic()
        if delay_s > 0:
            await asyncio.sleep(delay_s)


def _child() -> None:
    """Serve as the JSON in argv says, print the port, end when stdin does."""
    options = json.loads(sys.argv[1])
    per_request = {int(number): switches for number, switches in options.pop("per_request").items()}
    with TruthServer(per_request=per_request, **options) as server:
        print(server.port, flush=True)  # noqa: T201  # the answer to the parent
        sys.stdin.read()


if __name__ == "__main__":
    _child()
