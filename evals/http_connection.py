"""One keep-alive HTTP/1.1 connection: the place where bytes get their times.

A callback stamps, stores and returns; nothing is decoded here, since work done while one stream's bytes arrive delays
the stamps of all the others.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from typing import cast

import httptools

from evals.sse import Piece

MAX_BODY_BYTES = 256 * 1024 * 1024
"""A stream larger than this, the cost of keeping its pieces included, is no reply to anything that is sent here."""
MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""The same for what is no stream: an error, a list of tokens, an answer whose kind is not known yet."""
PIECE_OVERHEAD_BYTES = 160
"""A tuple, an int, a bytes object and a place in a list for each piece of a body: many times a piece of one byte."""


class Exchange:
    """One request on its way and what came back so far. Ends once: complete, or with `failure`."""

    __slots__ = (
        "answered",
        "content_encoding",
        "done",
        "done_ns",
        "failure",
        "last_ns",
        "location",
        "lost",
        "pieces",
        "received_bytes",
        "sent_ns",
        "status",
        "streams",
    )

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.sent_ns: int | None = None
        self.last_ns: int | None = None
        """Last sign of life: the sending, then each arrival."""
        self.done_ns: int | None = None
        self.answered = False
        """Whether any byte came back."""
        self.lost = False
        """Whether the connection broke: the only failure after which a fresh connection may help."""
        self.status: int | None = None
        self.location = ""
        self.content_encoding = ""
        self.pieces: list[Piece] = []
        self.received_bytes = 0
        self.streams = False
        """Whether the answer says that it is a stream of events, and succeeded."""
        self.failure: str | None = None

    @property
    def held_bytes(self) -> int:
        """What this reply costs in memory."""
        return self.received_bytes + PIECE_OVERHEAD_BYTES * len(self.pieces)

    def end(self, failure: str | None = None) -> None:
        if not self.done.done():
            self.failure = failure
            self.done_ns = time.monotonic_ns()
            self.done.set_result(None)


class HttpConnection(asyncio.Protocol):
    """Carries one exchange at a time; `on_idle` and `on_lost` tell its owner when it is free and when it is no more."""

    __slots__ = (
        "_at",
        "_exchange",
        "_fd",
        "_framed",
        "_on_idle",
        "_on_lost",
        "_parser",
        "_transport",
    )

    def __init__(self, on_idle: Callable[[HttpConnection], None], on_lost: Callable[[HttpConnection], None]) -> None:
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._exchange: Exchange | None = None
        self._fd: int | None = None
        self._at = 0
        self._framed = False

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and self._exchange is None

    def send(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Put a request on the wire; the exchange's future is resolved when its answer is complete or will never be."""
        transport = self._transport
        assert transport is not None
        self._exchange = exchange
        self._framed = False
        written = 0
        if self._fd is not None:
            # Straight to the socket: uvloop would write at the end of the loop's turn, after the stamp was taken.
            # Nothing can be waiting in the transport, since a connection with unsent bytes is not used again.
            exchange.sent_ns = exchange.last_ns = time.monotonic_ns()
            try:
                written = os.writev(self._fd, (head, body))
            except BlockingIOError:
                pass
            except OSError as error:
                exchange.sent_ns = None
                self._break_off(f"connection: {error.strerror or error}", lost=True)
                return
        else:
            exchange.sent_ns = exchange.last_ns = time.monotonic_ns()
        if written < len(head) + len(body):
            transport.write((head + body)[written:])

    def drop(self) -> None:
        """Close at once, whatever is under way."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def fail(self, reason: str) -> None:
        """End the exchange under way for a reason of the caller's, and the connection with it."""
        self._break_off(reason, lost=False)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        own = self._transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._transport.get_extra_info("sslcontext") is None:
                self._fd = own.fileno()

    def data_received(self, data: bytes) -> None:
        self._at = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None or self._parser is None:
            self.drop()  # bytes nobody asked for, such as a 408 to an idle connection
            return
        exchange.last_ns = self._at
        exchange.answered = True
        exchange.received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail("http: the server wants to change the protocol")
        except httptools.HttpParserError as error:
            self.fail(f"http: not a well-formed answer ({error})")
        limit = MAX_BODY_BYTES if exchange.streams else MAX_ANSWER_BYTES
        if exchange.held_bytes > limit and self._exchange is exchange:
            self.fail(f"http: the reply is larger than {limit >> 20} MiB, the cost of its pieces included")

    def connection_lost(self, exc: Exception | None) -> None:
        self._at = time.monotonic_ns()
        exchange = self._exchange
        if exchange is not None:
            if exc is None and exchange.status is not None and not self._framed:
                self._exchange = None
                exchange.end()  # HTTP/1.0: the close is the end of the body
            else:
                where = "in the middle of its answer" if exchange.answered else "without an answer"
                cause = f" ({exc})" if exc else ""
                self._break_off(f"connection: the server closed it {where}{cause}", lost=True)
        # The parser holds this object's methods: without this both live until a garbage collection.
        self._parser = None
        self._fd = None
        self._on_lost(self)

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        elif name == b"location":
            exchange.location = value.decode("latin-1")
        elif name == b"content-type":
            exchange.streams = value.lower().startswith(b"text/event-stream")
        elif name == b"content-encoding":
            exchange.content_encoding = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._exchange is not None and self._parser is not None:
            status = self._parser.get_status_code()
            # A 100 or 103 goes ahead of the answer.
            self._exchange.status = status if status >= 200 else None
            self._exchange.streams = self._exchange.streams and 200 <= status < 300
            if status in (204, 304):
                self._framed = True

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.pieces.append((self._at, body))

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or exchange.status is None or self._parser is None or self._transport is None:
            return
        self._exchange = None
        # An answer that came before the whole request was read leaves a connection in an unknown state.
        if self._parser.should_keep_alive() and not self._transport.get_write_buffer_size():
            self._on_idle(self)
        else:
            self._transport.abort()
        exchange.end()
        exchange.done_ns = self._at

    def _break_off(self, reason: str, *, lost: bool) -> None:
        exchange = self._exchange
        self.drop()
        if exchange is not None:
            exchange.lost = lost
            exchange.end(reason)
