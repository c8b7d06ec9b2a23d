"""Finding, in whatever a server answered, the sentence that says what it minds."""

from __future__ import annotations

import html
import json
import re
from typing import Any

MAX_WORDS = 500
"""Characters kept of a server's message: enough for a sentence, too little for a page of HTML."""

_INVISIBLE = re.compile(r"<(script|style|head)\b.*?</\1\s*>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.DOTALL | re.IGNORECASE)


def words_of_body(body: bytes) -> str:
    """The message in an error body: JSON in the usual dialects, HTML, or plain text; empty for an empty body."""
    text = body.decode("utf-8", "replace").strip()
    try:
        return words_of_error(json.loads(text))
    except ValueError:
        pass
    if text.startswith("<"):
        title = _TITLE.search(text)
        visible = _INVISIBLE.sub(" ", text)
        text = html.unescape(visible if visible.strip() or title is None else title[1])
    return _short(text)


def words_of_error(answer: Any) -> str:
    """The message in a parsed error: `{"error": {"message": ...}}`, `{"error": "..."}`, `{"detail": ...}` and kin."""
    found = answer
    for key in ("error", "message", "detail", "msg"):
        found = _inside(_first(found), key) or found
    return _short(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False))


def _first(answer: Any) -> Any:
    """FastAPI's `detail` is a list with one object per mistake: the first says enough."""
    if isinstance(answer, list) and answer:
        return answer[0]  # pyright: ignore[reportUnknownVariableType]  # JSON of a peer
    return answer  # pyright: ignore[reportUnknownVariableType]  # JSON of a peer


def _inside(answer: Any, key: str) -> Any:
    if isinstance(answer, dict):
        return answer.get(key)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON of a peer
    return None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 3] + "..."
