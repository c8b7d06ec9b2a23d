"""Taking the endpoint's key out of whatever the endpoint says, before it reaches a record, an error or a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from evals.record import RequestRecord

PLACEHOLDER = "[key]"
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})
SHORTEST_SECRET = 6
"""A shorter one guards nothing (`none`, `EMPTY`), and taking it out would spoil ordinary words of replies."""


class Redactor:
    """Knows a client's secrets and replaces each by `[key]`.

    As they were sent, with and without a scheme such as `Bearer`, and as JSON and addresses spell them.
    """

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        spellings: set[str] = set()
        for name, value in (headers or {}).items():
            if name.lower() in SECRET_HEADERS:
                bare = value.rpartition(" ")[2]
                for secret in (value, bare):
                    if len(bare) >= SHORTEST_SECRET:
                        in_json = json.dumps(secret)[1:-1]
                        spellings |= {secret, in_json, in_json.replace("/", "\\/"), quote(secret), quote(secret, "")}
        # The longest first: a key within `Bearer key` must not leave its scheme behind.
        self._spellings = sorted(spellings, key=len, reverse=True)
        self._encoded = [spelling.encode() for spelling in self._spellings]

    def text(self, text: str) -> str:
        for spelling in self._spellings:
            text = text.replace(spelling, PLACEHOLDER)
        return text

    def body(self, body: bytes) -> bytes:
        """For raw bytes of which only a beginning will be looked at, since a cut through a key would hide it."""
        for spelling in self._encoded:
            body = body.replace(spelling, PLACEHOLDER.encode())
        return body

    def answer(self, value: Any) -> Any:
        """Every string of a JSON value, names of fields included. Raises: RecursionError: nested too deeply."""
        if not self._spellings:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.answer(item) for item in value]  # pyright: ignore[reportUnknownVariableType]  # JSON of a peer
        if isinstance(value, dict):
            return {
                self.answer(name): self.answer(item)
                for name, item in value.items()  # pyright: ignore[reportUnknownVariableType]  # JSON of a peer
            }
        return value

    def record(self, record: RequestRecord) -> None:
        """All words of a record. Joined texts are looked at, so a key that came in two chunks is found too."""
        record.text = self.text(record.text)
        record.reasoning = self.text(record.reasoning)
        record.tool_calls = self.answer(record.tool_calls)
        for name in ("reason", "finish_reason", "chunk_tokens_reason"):
            words: str | None = getattr(record, name)
            if words is not None:
                setattr(record, name, self.text(words))


NO_SECRETS = Redactor()
