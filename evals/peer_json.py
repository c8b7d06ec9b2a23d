"""Reading JSON that a peer sent, however hostile: one error for everything that cannot be read."""

from __future__ import annotations

import json
from typing import Any

DEEPEST = 64
"""Of values that are kept. No answer of an engine comes near, and every writer of JSON can write it."""


def read_json(payload: bytes | str) -> Any:
    """Raises: ValueError: no JSON, or nested more deeply than can be read."""
    if isinstance(payload, bytes):
        payload = payload.decode("utf-8-sig", "replace")
    try:
        return json.loads(payload)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_shallow(value: Any) -> bool:
    """Whether a value is nested no deeper than `DEEPEST`; looked at level by level, so depth costs no stack."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # JSON of a peer
        ]
        if not level:
            return True
    return False
