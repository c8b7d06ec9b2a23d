"""The measuring client: requests in, records out.

What it is careful about: connections are open before any clock runs; a request's clock starts when its bytes reach the
socket; bytes are stamped on arrival and decoded when their request is over, or when the whole measurement is (`defer`);
one timer watches all requests. It follows no redirect, uses no proxy and repeats nothing a server may have seen, except
on a connection kept alive that turns out to be closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from evals.address import Address, fixed_head, is_printable
from evals.errors import EndpointGoneError, EvalError, WorkloadError
from evals.http_connection import Exchange, HttpConnection
from evals.peer_json import read_json
from evals.record import Request, RequestRecord
from evals.redaction import Redactor
from evals.server_words import shorten, words_of_body
from evals.sse import read_stream
from evals.watchdog import Watchdog, Watched
from rigs.serving import StreamKeys

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 1.0
DEFERRED_BYTES = 64 * 1024 * 1024
"""Raw replies kept for later decoding; beyond this each is decoded when it ends, as without `defer`."""

_OPENED_AT_ONCE = 4
"""Connections opened in parallel: some engines listen with a backlog of five."""


class StreamClient:
    """Streams replies from one OpenAI-compatible endpoint.

    Enter it as an async context; leaving closes every connection and decodes what was deferred. `base_url` may end in
    a slash or in `/v1`, and may have a path before that.

    Raises:
        WorkloadError: the address or a header cannot be sent.
    """

    defer: bool
    """Keep raw bytes until `finish` or `finish_all`; may be changed between requests."""
    connections_opened: int
    """Since the client was made; beyond the concurrency, the server closes connections or the client loses them."""

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        stream_keys: StreamKeys | None = None,
        defer: bool = False,
        deferred_bytes: int = DEFERRED_BYTES,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.defer = defer
        self.connections_opened = 0
        self._address = Address.parse(base_url)
        self._fixed_head = fixed_head(self._address, headers or {})
        self._redactor = Redactor(headers)
        self._keys = stream_keys or StreamKeys()
        self._deferred_bytes = deferred_bytes
        self._connect_timeout_s = connect_timeout_s
        self._ssl = (ssl_context or ssl.create_default_context()) if self._address.tls else None
        self._idle: list[HttpConnection] = []
        self._all: set[HttpConnection] = set()
        self._all_gone = asyncio.Event()
        self._closed = False
        self._watchdog = Watchdog()
        self._raw: dict[int, tuple[RequestRecord, Exchange]] = {}
        self._raw_bytes = 0

    @property
    def base_url(self) -> str:
        return self._address.url + self._address.prefix

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish_all()
        await self.close()

    async def open(self, connections: int) -> None:
        """Have exactly this many idle connections, so that no request has to open its own.

        Surplus ones are closed: in some engines an idle connection holds a thread.

        Raises:
            EndpointGoneError: the endpoint takes no connection.
        """
        self._idle = [connection for connection in self._idle if connection.usable]
        while len(self._idle) > connections:
            self._idle.pop().drop()
        try:
            while (missing := connections - len(self._idle)) > 0:
                batch = [self._connect() for _ in range(min(missing, _OPENED_AT_ONCE))]
                for made in await asyncio.gather(*batch, return_exceptions=True):
                    if isinstance(made, BaseException):
                        raise made
                    self._idle.append(made)
        except _ConnectError as error:
            raise EndpointGoneError(f"{self.base_url}: {error}. Is the engine still running there?") from error

    async def close(self) -> None:
        """Close every connection; a request under way fails."""
        self._closed = True
        self._watchdog.stop()
        if not self._all:
            return
        self._all_gone.clear()
        for connection in tuple(self._all):
            connection.fail("connection: the client was closed")
        # The loop reports each loss in one of its next turns; leaving earlier would leave sockets to the collector.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._all_gone.wait()

    async def stream(self, request: Request) -> RequestRecord:
        """Send one request and follow its reply to the end; a failure is a record, not an exception."""
        queued_ns = time.monotonic_ns()
        record = RequestRecord(id=request.id, status="failed", queued_ns=queued_ns)
        try:
            head = self._request_head("POST", request.path, len(request.body), request.id)
        except WorkloadError as error:
            record.reason = f"request: {error}"
            return record
        exchange, record.connection_reused = await self._exchange(
            head, request.body, request.timeout_s, request.idle_timeout_s
        )
        record.http_status = exchange.status
        record.sent_ns = exchange.sent_ns
        record.done_ns = exchange.done_ns
        self._raw[id(record)] = (record, exchange)
        self._raw_bytes += exchange.held_bytes
        if not self.defer or self._raw_bytes > self._deferred_bytes:
            self.finish(record)
        else:
            record.reason = "stream: not decoded yet"
        return record

    def finish(self, record: RequestRecord) -> None:
        """Decode a deferred reply into its record; nothing happens to one that is finished."""
        _, exchange = self._raw.pop(id(record), (None, None))
        if exchange is not None:
            self._raw_bytes -= exchange.held_bytes
            self._decode(exchange, record)

    def finish_all(self) -> None:
        """Decode every deferred reply."""
        for record, _ in tuple(self._raw.values()):
            self.finish(record)

    async def get_json(self, path: str, *, timeout_s: float = 30.0) -> Any:
        """One answer as JSON, outside any measurement.

        Raises:
            EndpointGoneError: no answer.
            EvalError: an answer other than success, or one that is no JSON.
        """
        return await self._one_shot("GET", path, b"", timeout_s)

    async def post_json(self, path: str, body: Any, *, timeout_s: float = 120.0) -> Any:
        """As `get_json`, with a body."""
        return await self._one_shot("POST", path, json.dumps(body).encode(), timeout_s)

    async def _one_shot(self, method: str, path: str, body: bytes, timeout_s: float) -> Any:
        head = self._request_head(method, path, len(body), "")
        exchange, _ = await self._exchange(head, body, timeout_s, timeout_s)
        asked = f"{method} {self._address.url}{self._address.target(path)}"
        if exchange.failure:
            raise EndpointGoneError(f"{asked}: {self._redactor.text(exchange.failure)}")
        reason = _http_failure(exchange, self._redactor)
        if reason:
            raise EvalError(f"{asked}: {reason}")
        answer = b"".join(piece for _, piece in exchange.pieces)
        try:
            return self._redactor.answer(read_json(answer))
        except (ValueError, RecursionError):
            # Without the cause, which quotes the answer, and with it perhaps the key.
            words = words_of_body(answer, self._redactor)[:200]
            raise EvalError(f"{asked}: the answer is no JSON: {words}") from None

    def _decode(self, exchange: Exchange, record: RequestRecord) -> None:
        try:
            _read_reply(exchange, self._keys, record, self._redactor)
            self._redactor.record(record)
        except Exception as error:  # noqa: BLE001 - the reason follows
            # A reply is whatever a peer sent. One that trips our reading in a way nobody thought of is that request's
            # failure: raised, it would take the records of the whole burst with it. Nothing read of it is kept.
            clean = RequestRecord(id=record.id, status="failed")
            for name in ("http_status", "queued_ns", "sent_ns", "done_ns", "connection_reused"):
                setattr(clean, name, getattr(record, name))
            clean.reason = f"stream: the reply could not be decoded ({type(error).__name__})"
            clean.chunk_tokens_reason = "the request failed"
            for name in RequestRecord.__slots__:
                setattr(record, name, getattr(clean, name))

    async def _exchange(
        self, head: bytes, body: bytes, timeout_s: float, idle_timeout_s: float
    ) -> tuple[Exchange, bool]:
        """The exchange, ended one way or the other, and whether its connection was open beforehand."""
        loop = asyncio.get_running_loop()
        deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        connection = self._take_idle()
        reused = connection is not None
        while True:
            exchange = Exchange(loop.create_future())
            if connection is None:
                try:
                    connection = await self._connect(min(self._connect_timeout_s, timeout_s))
                except _ConnectError as error:
                    exchange.end(str(error))
                    exchange.done_ns = None  # it never began
                    return exchange, False
            connection.send(exchange, head, body)
            self._watchdog.add(Watched(exchange, connection, deadline_ns, timeout_s, idle_timeout_s))
            try:
                await exchange.done
            except asyncio.CancelledError:
                connection.drop()
                raise
            finally:
                self._watchdog.remove(exchange)
            if reused and exchange.lost and not exchange.answered:
                # Closed while it was idle: the server never read the request, so it may be sent once more.
                connection, reused = None, False
                continue
            return exchange, reused

    def _take_idle(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, timeout_s: float | None = None) -> HttpConnection:
        limit_s = timeout_s or self._connect_timeout_s
        address = self._address
        where = f"cannot connect to {address.host}:{address.port}"
        try:
            async with asyncio.timeout(limit_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: HttpConnection(self._rest, self._forget), address.host, address.port, ssl=self._ssl
                )
        except TimeoutError as error:
            raise _ConnectError(f"timeout: {where} within {limit_s:g} s") from error
        except (OSError, UnicodeError) as error:
            raise _ConnectError(f"connection: {where}: {_cause(error)}") from error
        if self._closed:
            connection.drop()
            raise _ConnectError("connection: the client was closed")
        self._all.add(connection)
        self.connections_opened += 1
        return connection

    def _rest(self, connection: HttpConnection) -> None:
        self._idle.append(connection)

    def _forget(self, connection: HttpConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._all:
            self._all_gone.set()

    def _request_head(self, method: str, path: str, length: int, request_id: str) -> bytes:
        target = self._address.target(path)
        if not path.startswith("/") or not is_printable(target) or " " in target:
            raise WorkloadError(f"The path {path!r} cannot be sent: it must start with / and hold no blanks.")
        name = f"x-request-id: {request_id}\r\n" if request_id and is_printable(request_id) else ""
        return b"%s %s HTTP/1.1\r\n%s%scontent-length: %d\r\n\r\n" % (
            method.encode(),
            target.encode(),
            self._fixed_head,
            name.encode(),
            length,
        )


class _ConnectError(Exception):
    """No connection; the message is a reason as records carry it."""


def _cause(error: OSError | UnicodeError) -> str:
    """The system's own words for it, whichever loop wrapped them."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, (ssl.SSLError, socket.gaierror)):
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)


def _read_reply(exchange: Exchange, keys: StreamKeys, record: RequestRecord, redactor: Redactor) -> None:
    reason = _http_failure(exchange, redactor) if exchange.status is not None else None
    if reason is None and exchange.pieces:
        whole = read_stream(exchange.pieces, keys, record, redactor)
        # Servers exist that close right after [DONE], without HTTP's own end of the body: nothing is missing then.
        if exchange.failure and not (exchange.lost and whole):
            reason = exchange.failure
    elif reason is None:
        reason = exchange.failure or "stream: the reply was empty"
    if reason:
        record.status = "failed"
        record.reason = reason
        record.chunk_tokens_reason = record.chunk_tokens_reason or "the request failed"


def _http_failure(exchange: Exchange, redactor: Redactor) -> str | None:
    status = exchange.status
    if status is None:
        return None
    if 300 <= status < 400:
        place = shorten(exchange.location, redactor) or "nowhere"
        return f"http {status}: a redirect to {place} is not followed; use that address"
    if status >= 400:
        words = words_of_body(b"".join(piece for _, piece in exchange.pieces), redactor)
        return f"http {status}: {words or 'no message'}"
    if exchange.content_encoding.lower() not in ("", "identity"):
        encoding = shorten(exchange.content_encoding, redactor)
        return f"http {status}: the answer is compressed ({encoding}), though nobody asked for that"
    return None
