"""One request: what was asked and what happened to it. The seam between the streaming client and everything above."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

RequestStatus = Literal["ok", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A body ready to be sent; encoded beforehand, so that the timing path only copies bytes."""

    id: str
    path: str
    """`/v1/chat/completions`."""
    body: bytes
    timeout_s: float = 600.0
    """For the whole request."""
    idle_timeout_s: float = 120.0
    """Between two arrivals of bytes."""


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """All times in ns of CLOCK_MONOTONIC. A value that the stream did not give is None, never 0."""

    id: str
    status: RequestStatus
    reason: str | None = None
    """Why it failed: a kind and the server's own words."""
    http_status: int | None = None
    queued_ns: int | None = None
    """When our own code wanted to send."""
    sent_ns: int | None = None
    """When the request's bytes reached the socket: the request's clock starts here."""
    chunk_ns: list[int] = field(default_factory=list[int])
    """Arrival of each chunk that brought content, reasoning or a tool call."""
    chunk_tokens: list[int] | None = None
    """Tokens each of these chunks brought, where the stream tells or implies it; else None with the reason below."""
    chunk_tokens_reason: str | None = None
    done_ns: int | None = None
    """End of the body."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    usage_reason: str | None = None
    """Why a count that the usage told was not taken."""
    cached_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    server_prefill_ms: float | None = None
    server_decode_ms: float | None = None
    finish_reason: str | None = None
    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    chunks: int = 0
    """SSE data events of the stream, for the cost of the client itself."""
    connection_reused: bool | None = None
