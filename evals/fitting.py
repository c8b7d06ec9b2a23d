"""Prompts of an exact length in the server's own tokens, the chat template's included.

With a tokenizer endpoint a text is measured and mended until it fits. Without one, two calibration requests give
tokens per word, and the texts are built by that line. Either way the report tells asked and got.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from pydantic import JsonValue

from evals.errors import WorkloadError
from evals.record import Request, RequestRecord
from evals.spec import UnitSpec
from evals.workload import PromptSource, chat_request

MAX_TRIES = 24
"""Tokenizer calls for one prompt; a usual vocabulary needs two to four."""
TOKENIZER_CALLS_AT_ONCE = 8
CALIBRATION_WORDS = (16, 144)
"""Lengths of the calibration prompts; the second is cut to fit a small context."""
ENDINGS = (" a", " it", ".", "x", "?", " 7", "!")
"""One token each in most vocabularies, one or two bytes in one of bytes; tried in turn for the last tokens."""


class FittingClient(Protocol):
    async def stream(self, request: Request) -> RequestRecord: ...
    async def post_json(self, path: str, body: Any) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLine:
    """tokens of a prompt = `overhead` + `per_word` x words."""

    overhead: float
    per_word: float

    def words_for(self, tokens: int) -> int:
        return max(1, round((tokens - self.overhead) / self.per_word))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitter:
    """How long prompts are on this endpoint, learnt once per start of a unit by `calibrate`."""

    client: FittingClient
    tokenize_path: str | None
    line: TokenLine

    @property
    def smallest_prompt(self) -> int:
        """Tokens of the template and one word; nothing shorter can be asked."""
        return round(self.line.overhead) + 1

    async def fit(self, sources: Sequence[Iterator[str]], tokens: int) -> list[str]:
        """One text for each source of words; as a chat turn each has `tokens` tokens, or as near as it goes.

        Raises:
            EvalError: the tokenizer did not answer.
        """
        if self.tokenize_path is None:
            count = self.line.words_for(tokens)
            return [" ".join(islice(words, count)) for words in sources]
        turns = asyncio.Semaphore(TOKENIZER_CALLS_AT_ONCE)
        wanted = tokens - round(self.line.overhead)

        async def one(words: Iterator[str]) -> str:
            async with turns:
                return await self._fit_exactly(words, wanted)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(words)) for words in sources]
        except ExceptionGroup as errors:  # one tokenizer: the first error tells it all
            raise errors.exceptions[0] from errors
        return [task.result() for task in tasks]

    async def _fit_exactly(self, words: Iterator[str], wanted: int) -> str:
        # Words down to the last one that still fits, then small endings for what remains.
        text = [next(words)]
        text += islice(words, max(0, int((wanted - 1) / self.line.per_word)))
        nearest, nearest_count = " ".join(text), await self._count(" ".join(text))
        for _ in range(MAX_TRIES):
            missing = wanted - nearest_count
            if missing == 0:
                return nearest
            per_word = max(1.0, nearest_count / len(text))
            if missing < 0:
                surplus = max(1, int(-missing / per_word))
                if len(text) == 1:
                    break
                del text[max(1, len(text) - surplus) :]
            elif missing >= per_word:
                text += islice(words, max(1, int(missing / per_word)))
            else:
                return await self._end_exactly(" ".join(text), missing, wanted)
            nearest = " ".join(text)
            nearest_count = await self._count(nearest)
        if nearest_count > wanted:
            return await self._cut_exactly(nearest, wanted)
        return await self._end_exactly(nearest, wanted - nearest_count, wanted)

    async def _end_exactly(self, text: str, missing: int, wanted: int) -> str:
        for attempt in range(MAX_TRIES):
            if missing <= 0:
                break
            longer = text + ENDINGS[attempt % len(ENDINGS)]
            count = await self._count(longer)
            if wanted - missing < count <= wanted:
                text, missing = longer, wanted - count
        return text

    async def _cut_exactly(self, text: str, wanted: int) -> str:
        """A single word of several tokens where fewer are wanted: letters go from its end, one at least stays."""
        while len(text) > 1 and await self._count(text) > wanted:
            text = text[:-1]
        return text

    async def _count(self, text: str) -> int:
        assert self.tokenize_path is not None
        return await count_tokens(self.client, self.tokenize_path, text)


async def count_tokens(client: FittingClient, path: str, text: str) -> int:
    """Raises: EvalError: no answer, or one without a list of tokens."""
    answer: JsonValue = await client.post_json(path, {"content": text})
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, list):
        raise WorkloadError(
            f"The tokenizer at {path} answered {str(answer)[:200]!r} instead of a list `tokens`. Leave tokenize_path "
            f"out of the endpoint's request fields to have lengths fitted by calibration requests."
        )
    return len(tokens)


async def calibrate(client: FittingClient, spec: UnitSpec, prompts: PromptSource) -> Fitter:
    """Learn the template's overhead, and without a tokenizer tokens per word, from requests of one reply token.

    Raises:
        EvalError: a calibration request failed or told no token count, or the tokenizer did not answer.
    """
    path = spec.endpoint.request.tokenize_path
    room = spec.endpoint.context_tokens
    # A word is rarely above two tokens, and the template takes some dozens.
    longest = (
        CALIBRATION_WORDS[1] if room is None else max(CALIBRATION_WORDS[0] + 8, min(CALIBRATION_WORDS[1], room // 4))
    )
    sizes = [CALIBRATION_WORDS[0]] if path else [CALIBRATION_WORDS[0], longest]
    texts = [" ".join(islice(words, size)) for words, size in zip(prompts.take(len(sizes)), sizes, strict=True)]
    totals = [await _prompt_tokens(client, spec, text, ordinal) for ordinal, text in enumerate(texts)]
    if path:
        tokens = await count_tokens(client, path, texts[0])
        if totals[0] < tokens:
            raise WorkloadError(
                f"The server counted {totals[0]} prompt tokens for a text in which its tokenizer at {path} found "
                f"{tokens}: prompt lengths cannot be fitted with it."
            )
        return Fitter(
            client=client,
            tokenize_path=path,
            line=TokenLine(overhead=totals[0] - tokens, per_word=max(1.0, tokens / sizes[0])),
        )
    per_word = (totals[1] - totals[0]) / (sizes[1] - sizes[0])
    if per_word <= 0:
        raise WorkloadError(
            f"Prompts of {sizes[0]} and {sizes[1]} words had {totals[0]} and {totals[1]} tokens by the server's usage: "
            f"lengths cannot be fitted to such counts."
        )
    return Fitter(
        client=client,
        tokenize_path=None,
        line=TokenLine(overhead=max(0.0, totals[0] - per_word * sizes[0]), per_word=per_word),
    )


async def _prompt_tokens(client: FittingClient, spec: UnitSpec, text: str, ordinal: int) -> int:
    record = await client.stream(chat_request(spec, request_id=f"calibration-{ordinal}", text=text, max_tokens=1))
    if record.status == "failed":
        raise WorkloadError(f"The calibration request for prompt lengths failed: {record.reason}")
    if record.input_tokens is None:
        raise WorkloadError(
            "The server told no prompt token count in the usage of its stream, so prompts of a given length cannot "
            "be made. It must honour stream_options.include_usage."
        )
    return record.input_tokens
