"""Records and units made by hand, with round numbers that a test can check on paper."""

from __future__ import annotations

from typing import Any, TypeVar

from evals.record import RequestRecord
from evals.spec import UnitSpec

MS = 1_000_000
T = TypeVar("T")


def known(value: T | None) -> T:
    """A figure that must be there."""
    assert value is not None
    return value


def record(
    request_id: str = "1-0",
    *,
    sent_ms: float = 0.0,
    at_ms: tuple[float, ...] = (50.0, 60.0, 70.0, 80.0),
    tokens: tuple[int, ...] | None = (1, 1, 1, 1),
    **fields: Any,
) -> RequestRecord:
    """An ok request, sent and answered at these times."""
    defaults: dict[str, Any] = {
        "status": "ok",
        "http_status": 200,
        "sent_ns": int(sent_ms * MS),
        "chunk_ns": [int(at * MS) for at in at_ms],
        "chunk_tokens": list(tokens) if tokens is not None else None,
        "chunk_tokens_reason": None if tokens is not None else "the chunks hide their tokens",
        "input_tokens": 512,
        "output_tokens": sum(tokens) if tokens is not None else len(at_ms),
        "cached_tokens": 0,
    }
    return RequestRecord(id=request_id, **(defaults | fields))


def failed(reason: str = "http 500: no", **fields: Any) -> RequestRecord:
    defaults: dict[str, Any] = {"id": "f", "status": "failed", "reason": reason, "http_status": 500}
    return RequestRecord(**(defaults | fields))


def unit(work: dict[str, Any], *, base_url: str = "http://127.0.0.1:9", **fields: Any) -> UnitSpec:
    """A unit as it would be read from a file; `endpoint` is merged, the rest replaced."""
    endpoint = {"base_url": base_url, "model": "tiny", **fields.pop("endpoint", {})}
    return UnitSpec.model_validate(
        {"report_id": "r1", "seed": 7, "arm": {}, "endpoint": endpoint, "work": work, **fields}
    )
