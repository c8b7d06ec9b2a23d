"""From the raw body of one streamed reply to the stream part of its record. Pure: stamps come in, nothing is timed.

Works on bytes and decodes whole events only, so a character cut in two by the network is no special case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from evals.peer_json import is_shallow, read_json
from evals.record import RequestRecord
from evals.redaction import NO_SECRETS, Redactor
from evals.server_words import words_of_body, words_of_error
from rigs.serving import StreamKeys

try:
    from orjson import loads as _fast_loads
except ImportError:  # a rig may lack a wheel for it
    from json import loads as _fast_loads

Piece = tuple[int, bytes]
"""Bytes of the body and the monotonic time, in ns, at which they arrived."""

_KEY_FIELDS = ("drafted", "accepted", "cached_tokens", "server_prefill_ms", "server_decode_ms")
_END_TOKEN_REASONS = ("stop", "tool_calls")
_NOTHING: Any = {}
_BROKEN_OFF_REASONS = ("error", "abort")

MAX_COUNT = 10_000_000
"""Tokens. No reply has more, and arithmetic on a count without bound can fail, or fill the memory."""
_MAX_MS = 1e12
_MAX_REASON = 100
_MAX_NAME = 1000
"""Characters of a tool's name, which is put together from fragments."""


def read_stream(
    pieces: Sequence[Piece], keys: StreamKeys, record: RequestRecord, redactor: Redactor = NO_SECRETS
) -> bool:
    """Fill everything of `record` that the stream tells, its status included; true where `[DONE]` was seen.

    An event's time is the arrival of the bytes that complete it. What was read before a failure stays in the record.
    """
    reader = _Reader(keys, record, redactor)
    reader.read(pieces)
    reader.conclude(pieces)
    return reader.done


class _Reader:
    """The state of one stream. Shapes are not checked beforehand: a chunk that does not fit is caught as a whole,
    which keeps the common path to a few look-ups per chunk.
    """

    __slots__ = (
        "_arguments",
        "_calls",
        "_events",
        "_failure",
        "_found",
        "_highest_call",
        "_ids_of_chunk",
        "_keys",
        "_pending_ids",
        "_reasoning",
        "_record",
        "_redactor",
        "_text",
        "_usage_at_chunk",
        "done",
    )

    def __init__(self, keys: StreamKeys, record: RequestRecord, redactor: Redactor) -> None:
        self._record = record
        self._redactor = redactor
        self._keys = _keys_by_root(keys)
        self._found: dict[str, Any] = {}
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._highest_call = 0
        self._usage_at_chunk: list[int | None] = []
        self._ids_of_chunk: list[int] = []
        self._pending_ids = 0
        self._events = 0
        self._failure: str | None = None
        self.done = False

    def read(self, pieces: Iterable[Piece]) -> None:
        """Cut the body into events and take each."""
        rest: list[bytes] = []
        after_cr = False
        at = 0
        for at, arrived in pieces:
            piece = arrived
            if after_cr or b"\r" in piece:
                piece, after_cr = _with_plain_line_ends(piece, after_cr)
            if not piece:
                continue
            # Joined only where an event ends: joining at each line would be quadratic for an event of many lines.
            if b"\n\n" not in piece and not (rest and piece.startswith(b"\n") and rest[-1].endswith(b"\n")):
                rest.append(piece)
                continue
            if rest:
                rest.append(piece)
                piece = b"".join(rest)
            *blocks, tail = piece.split(b"\n\n")
            rest = [tail] if tail else []
            for block in blocks:
                if block.startswith(b"data: ") and b"\n" not in block:
                    self._take(at, block[6:])
                else:
                    self._take_block(at, block)
        # Some servers leave out the blank line after the last event. A torn event is no event.
        last = b"".join(rest).strip()
        if _is_whole(last):
            self._take_block(at, last)

    def conclude(self, pieces: Iterable[Piece]) -> None:
        """Judge the stream and write down the sums."""
        record = self._record
        record.text = _whole_characters("".join(self._text))
        record.reasoning = _whole_characters("".join(self._reasoning))
        record.tool_calls = self._tool_calls()
        record.chunks = self._events
        for name in ("drafted", "accepted", "cached_tokens"):
            setattr(record, name, _count(self._found.get(name)))
        for name in ("server_prefill_ms", "server_decode_ms"):
            setattr(record, name, _number(self._found.get(name)))
        record.chunk_tokens, record.chunk_tokens_reason = self._chunk_tokens()
        reason = self._failure or self._shortcoming(pieces)
        record.status = "failed" if reason else "ok"
        record.reason = f"stream: {reason}" if reason else None

    def _take_block(self, at: int, block: bytes) -> None:
        """An event in full generality: comments, a name, `data` over several lines, with or without a space."""
        data: list[bytes] = []
        name = b""
        for line in block.split(b"\n"):
            field, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
        if not data:
            return
        if name == b"error":
            self._events += 1
            self._fail(words_of_body(b"\n".join(data), self._redactor))
        else:
            self._take(at, b"\n".join(data))

    def _take(self, at: int, payload: bytes) -> None:
        try:
            chunk = _fast_loads(payload)
        except ValueError:
            if payload.strip() == b"[DONE]":
                self.done = True
                return
            try:
                # Slower and more lenient: half a surrogate pair, NaN among logprobs, a byte that is not UTF-8.
                chunk = read_json(payload)
            except ValueError:
                self._events += 1
                self._fail(f"an event that is no JSON: {self._beginning(payload)}")
                return
        self._events += 1
        try:
            self._take_chunk(at, chunk)
        except (AttributeError, TypeError, ValueError, KeyError, IndexError, OverflowError, RecursionError):
            self._fail(f"an event of unknown shape: {self._beginning(payload)}")

    def _take_chunk(self, at: int, chunk: Any) -> None:
        if chunk.get("error") or chunk.get("object") == "error":
            self._fail(words_of_error(chunk, self._redactor))
            return
        for root, fields in self._keys.items():
            branch = chunk.get(root)
            if branch is not None:
                for name, path in fields:
                    value = _dig(branch, path)
                    if value is not None:
                        self._found[name] = value
        # Usage before choices: the chunk that carries it may have none, and early chunks may carry a null.
        usage = chunk.get("usage")
        tokens = None
        if usage:
            tokens = self._usage(usage, "completion_tokens")
            record = self._record
            if tokens is not None:
                record.output_tokens = tokens
            prompt = self._usage(usage, "prompt_tokens")
            if prompt is not None:
                record.input_tokens = prompt
        choices = chunk.get("choices")
        if choices:
            self._take_choice(at, choices[0], tokens)

    def _take_choice(self, at: int, choice: Any, tokens: int | None) -> None:
        delta = choice.get("delta")
        brought = False
        if delta is None:
            text = choice.get("text")
        else:
            text = delta.get("content")
            # Servers in between two names send both with the same words: one of them counts.
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            if reasoning:
                self._reasoning.append(_text(reasoning))
                brought = True
            calls = delta.get("tool_calls")
            if calls:
                self._take_calls(calls)
                brought = True
        if text:
            self._text.append(_text(text))
            brought = True
        ids = choice.get("token_ids")
        if ids:
            self._pending_ids += len(ids)
        if brought:
            self._record.chunk_ns.append(at)
            self._usage_at_chunk.append(tokens)
            self._ids_of_chunk.append(self._pending_ids)
            self._pending_ids = 0
        reason = choice.get("finish_reason")
        if reason:
            # A word; redacted first, since a cut could go through a key.
            self._record.finish_reason = self._redactor.text(str(reason))[:_MAX_REASON]

    def _take_calls(self, calls: list[Any]) -> None:
        for delta in calls:
            function: Any = delta.get("function") or _NOTHING
            index = delta.get("index")
            if index is None:  # some servers send whole calls, unnumbered
                starts = bool(delta.get("id") or function.get("name"))
                index = len(self._calls) if starts or not self._calls else self._highest_call
            index = int(index)
            call = self._calls.setdefault(
                index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
            )
            self._highest_call = max(self._highest_call, index)
            call["id"] = call["id"] or delta.get("id")
            call["type"] = delta.get("type") or call["type"]
            name = function.get("name")
            if name and name != call["function"]["name"]:  # an equal one is a repetition, not a continuation
                call["function"]["name"] += name
                if len(call["function"]["name"]) > _MAX_NAME:
                    raise ValueError
            arguments = function.get("arguments")
            if isinstance(arguments, str) and isinstance(call["function"]["arguments"], str):
                self._arguments.setdefault(index, []).append(arguments)
            elif arguments is not None:
                call["function"]["arguments"] = arguments  # no string: kept as sent, for the scorer to mind

    def _tool_calls(self) -> list[dict[str, Any]]:
        for index, fragments in self._arguments.items():
            function = self._calls[index]["function"]
            if isinstance(function["arguments"], str):
                function["arguments"] = "".join((function["arguments"], *fragments))
        calls = [self._calls[index] for index in sorted(self._calls)]
        if is_shallow(calls):
            return calls
        self._fail("a tool call that is nested too deeply")
        return []

    def _usage(self, usage: Any, name: str) -> int | None:
        value = usage.get(name)
        count = _count(value)
        if count is None and value is not None:
            self._record.usage_reason = f"the usage's {name} is no count from 0 to {MAX_COUNT}"
        return count

    def _beginning(self, payload: bytes) -> str:
        return self._redactor.body(payload)[:120].decode("utf-8", "replace")

    def _chunk_tokens(self) -> tuple[list[int] | None, str | None]:
        """Tokens of each chunk, from the surest source that the stream has, else why there is none.

        Tokens that no chunk shows (the end token in `usage`) belong to no chunk, so the sum may be below `usage`.
        """
        record = self._record
        chunks = len(record.chunk_ns)
        total = record.output_tokens
        if not chunks:
            return None, "no chunk brought content"
        marks = [mark for mark in self._usage_at_chunk if mark is not None]
        if len(marks) == chunks and _grows_with_the_chunks(marks):
            return [marks[0], *(later - earlier for earlier, later in pairwise(marks))], None
        ids = sum(self._ids_of_chunk)
        if ids and total in (None, ids, ids + self._pending_ids):
            return self._ids_of_chunk, None
        if total == chunks:
            return [1] * chunks, None
        if total == chunks + 1 and record.finish_reason in _END_TOKEN_REASONS:
            # The one token without a chunk is the end token: llama.cpp counts it and has nothing to show for it.
            return [1] * chunks, None
        if total is None and record.usage_reason is not None:
            return None, record.usage_reason
        if total is None:
            return None, "the server sent no usage and does not say what each chunk holds"
        return None, f"{total} tokens in {chunks} chunks, and the server does not say what each holds"

    def _shortcoming(self, pieces: Iterable[Piece]) -> str | None:
        record = self._record
        if record.finish_reason in _BROKEN_OFF_REASONS:
            return f"the server ended it with finish_reason {record.finish_reason}"
        if not self._events and not self.done:
            return _not_a_stream(b"".join(piece for _, piece in pieces), self._redactor)
        if record.finish_reason is None and not self.done:
            return f"ended without finish_reason or [DONE] after {len(record.chunk_ns)} chunks with content"
        if record.finish_reason is None and not record.chunk_ns:
            return "ended with [DONE], but brought neither content nor a finish_reason"
        return None

    def _fail(self, words: str) -> None:
        self._failure = self._failure or words or "an error without words"


def _with_plain_line_ends(piece: bytes, after_cr: bool) -> tuple[bytes, bool]:
    """CR and CRLF as LF; the flag says that a CR ended the piece, so that an LF opening the next is its other half.

    JSON never holds a bare CR, so this cannot touch content.
    """
    if after_cr:
        piece = piece.removeprefix(b"\n")
    return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), piece.endswith(b"\r")


def _is_whole(block: bytes) -> bool:
    """Whether an event that no blank line ended has all its bytes."""
    payload = block.rpartition(b"data:")[2].strip()
    if payload == b"[DONE]":
        return True
    try:
        read_json(payload)
    except ValueError:
        return False
    return True


def _keys_by_root(keys: StreamKeys) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """Field -> path, grouped by the path's first step: most chunks lack that, and so cost one look-up."""
    grouped: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for name in _KEY_FIELDS:
        dotted: str | None = getattr(keys, name)
        if dotted:
            root, *path = dotted.split(".")
            grouped.setdefault(root, []).append((name, tuple(path)))
    return grouped


def _dig(branch: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        if not isinstance(branch, dict):
            return None
        branch = branch.get(step)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON of a peer
    return branch  # pyright: ignore[reportUnknownVariableType]  # JSON of a peer


def _grows_with_the_chunks(marks: list[int]) -> bool:
    """Whether usage beside the chunks was counted as they came; a constant total on each chunk was not."""
    if marks[0] < 1 or any(later < earlier for earlier, later in pairwise(marks)):
        return False
    return len(marks) == 1 or marks[-1] > marks[0]


def _text(value: Any) -> str:
    if value.__class__ is not str:
        raise TypeError
    return value


def _count(value: Any) -> int | None:
    # A bool is an int in Python, and no figure in anybody's stream. NaN and infinities are the lenient parser's.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_COUNT:
        return None
    return int(value) if value == int(value) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _MAX_MS:
        return None
    return value


def _whole_characters(text: str) -> str:
    """Halves of surrogate pairs from two events joined; a half without its other becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _not_a_stream(body: bytes, redactor: Redactor) -> str:
    if not body.strip():
        return "the reply was empty"
    try:
        answer = read_json(body)
    except ValueError:
        return f"the reply held no events: {words_of_body(body, redactor)}"
    if isinstance(answer, dict) and "choices" in answer:
        return "the server answered all at once instead of streaming; a time to the first token does not exist"
    return words_of_error(answer, redactor)
