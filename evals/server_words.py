"""Finding, in whatever a server answered, the sentence that says what it minds.

A server may answer anything, so every step here takes time in proportion to what it looks at, and looks at a beginning.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import string
from typing import Any

from evals.peer_json import read_json
from evals.redaction import NO_SECRETS, Redactor

MAX_WORDS = 500
"""Characters kept of a server's message: enough for a sentence, too little for a page of HTML."""
MAX_JSON_BYTES = 1 << 20
"""Whole or not at all: a server may repeat the request in its complaint, and half of a JSON text is none."""
MAX_TEXT = 16 * 1024
"""Characters looked at of what is no JSON."""

_INVISIBLE = ("script", "style", "head")
_TAG_NAME = re.compile(r"[a-z]+")
# Of the same length, unlike str.lower(), which makes two characters of some capitals.
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def words_of_body(body: bytes, redactor: Redactor = NO_SECRETS) -> str:
    """The message in an error body: JSON in the usual dialects, HTML, or plain text; empty for an empty body."""
    if len(body) <= MAX_JSON_BYTES:
        with contextlib.suppress(ValueError):
            return words_of_error(read_json(body.strip()), redactor)
    # Redacted before it is cut: a cut through a key would leave a part that nothing recognises.
    text = redactor.body(body).lstrip()[: MAX_TEXT * 4].decode("utf-8", "replace")[:MAX_TEXT]
    if text.startswith("<"):
        visible = _visible(text)
        text = visible if visible.strip() else _title(text) or visible
        with contextlib.suppress(ValueError):  # a numeric entity of thousands of digits
            text = html.unescape(text)
    return shorten(text, redactor)


def words_of_error(answer: Any, redactor: Redactor = NO_SECRETS) -> str:
    """The message in a parsed error: `{"error": {"message": ...}}`, `{"error": "..."}`, `{"detail": ...}` and kin."""
    found = answer
    for key in ("error", "message", "detail", "msg"):
        found = _inside(_first(found), key) or found
    if isinstance(found, str):
        return shorten(found, redactor)
    try:
        return shorten(json.dumps(found, ensure_ascii=False), redactor)
    except (RecursionError, ValueError):
        return "an error that is nested too deeply, or holds too long a number, to be shown"


def shorten(text: str, redactor: Redactor = NO_SECRETS) -> str:
    """One line of bounded length, without secrets."""
    line = " ".join(redactor.text(text).split())
    return line if len(line) <= MAX_WORDS else line[: MAX_WORDS - 3] + "..."


def _first(answer: Any) -> Any:
    """FastAPI's `detail` is a list with one object per mistake: the first says enough."""
    if isinstance(answer, list) and answer:
        return answer[0]  # pyright: ignore[reportUnknownVariableType]  # JSON of a peer
    return answer  # pyright: ignore[reportUnknownVariableType]  # JSON of a peer


def _inside(answer: Any, key: str) -> Any:
    if isinstance(answer, dict):
        return answer.get(key)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON of a peer
    return None


def _visible(page: str) -> str:
    """The page without its tags, and without what stands between those of `_INVISIBLE`."""
    lowered = page.translate(_LOWER)
    parts: list[str] = []
    unclosed: set[str] = set()
    at = 0
    while (start := page.find("<", at)) >= 0:
        parts.append(page[at:start])
        end = page.find(">", start)
        if end < 0:
            at = start  # a torn tag, or no tag at all
            break
        at = end + 1
        name = _TAG_NAME.match(lowered, start + 1)
        # An end that was not found once is not looked for again, which would be quadratic.
        if name is not None and name[0] in _INVISIBLE and name[0] not in unclosed:
            close = lowered.find(f"</{name[0]}", at)
            if close < 0 and name[0] != "head":
                return " ".join(parts)
            if close < 0:
                unclosed.add(name[0])
            else:
                at = close
    parts.append(page[at:])
    return " ".join(parts)


def _title(page: str) -> str:
    lowered = page.translate(_LOWER)
    opening = lowered.find("<title")
    start = lowered.find(">", opening) + 1
    end = lowered.find("</title", start)
    return page[start:end] if opening >= 0 and start > 0 and end >= 0 else ""
