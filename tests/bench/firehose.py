"""As many chunks as one core can take: a server that sends without delays, so that the client is the limit."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import socket
import statistics
import threading
from collections.abc import Generator, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection as Pipe
from typing import Any

import evals.sse
from evals.load import loop_factory
from tests.bench.client import chats, known, measure
from tests.bench.figure import Figure

STREAMS, CHUNKS, REPEATS = 256, 512, 3
CONCURRENCY = 16


def firehose() -> Iterator[Figure]:
    for parser, target in (("orjson", 250_000), ("json", 120_000)):
        figure = Figure(
            name="firehose",
            what=f"chunks per CPU second of the client, no delays, {parser}",
            unit="chunks/s",
            target=target,
            at_least=True,
            best_peer="llama-benchy 79,100",
        )
        if parser == "orjson" and evals.sse._fast_loads is json.loads:
            yield replace(figure, note="orjson is not installed")
            continue
        with firehose_server() as base_url, parsed_by(parser):
            costs = [measure(base_url, chats(STREAMS, CHUNKS), CONCURRENCY, loop_factory()) for _ in range(REPEATS)]
        by_clock = statistics.median(known(cost.load.check.chunks) / cost.wall_s for cost in costs)
        yield replace(
            figure,
            value=statistics.median(known(cost.load.check.chunks) / cost.cpu_s for cost in costs),
            note=f"median of {REPEATS} x {STREAMS * CHUNKS:,}; {by_clock:,.0f} by the clock, with the server beside it",
        )


@contextlib.contextmanager
def parsed_by(parser: str) -> Generator[None]:
    """Decode as where orjson is not installed."""
    fast = evals.sse._fast_loads
    if parser == "json":
        evals.sse._fast_loads = json.loads
    try:
        yield
    finally:
        evals.sse._fast_loads = fast


@contextlib.contextmanager
def firehose_server() -> Generator[str]:
    """A server in a process of its own that sends one prepared stream as fast as the socket takes it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=pour, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def pour(pipe: Pipe) -> None:
    """Be the firehose server."""
    stream = prepared_stream()

    def answer(connection: socket.socket) -> None:
        with connection:
            received = b""
            while data := connection.recv(65536):
                received += data
                head, found, body = received.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if found else 0
                if found and len(body) >= length:
                    connection.sendall(stream)
                    received = body[length:]

    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        pipe.send(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def prepared_stream() -> bytes:
    """A reply in events of about 230 bytes, each an HTTP chunk of its own, as engines send them."""
    chunk: dict[str, Any] = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": "a-model-with-a-name",
        "choices": [{"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}],
    }
    usage = {"prompt_tokens": 9, "completion_tokens": CHUNKS, "total_tokens": CHUNKS + 9}
    events = [json.dumps(chunk)] * CHUNKS
    events += [json.dumps({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})]
    events += [json.dumps({**chunk, "choices": [], "usage": usage}), "[DONE]"]
    lines = [f"data: {event}\n\n".encode() for event in events]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in lines) + b"0\r\n\r\n"
