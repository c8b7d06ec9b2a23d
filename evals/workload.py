"""What a unit sends: its cells in order, the words of each prompt, the request bodies, and the hash of it all."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from evals.errors import WorkloadError
from evals.prompts.chat import CHAT_PROMPTS
from evals.prompts.words import WORDS
from evals.record import Request
from evals.spec import EvalWork, SpeedWork, UnitSpec, Work
from rigs.facts import Border

GENERATOR_VERSION = 1
"""Raised when equal specs would send other prompts than before; part of the workload hash."""

MAX_CELLS = 20_000
MAX_REQUESTS = 1_000_000

CHAT_PATH = "/v1/chat/completions"
SMALLEST_SLICE = 8
WAVES_IN_A_SLICE = 4
"""At the end of a slice some of the server idles, so a slice is several times what is in flight."""


class CellKey(Border):
    """Names one cell of a unit."""

    concurrency: int
    input_len: int | None
    """None where the prompt's own length is taken as it is."""
    output_len: int
    prompt: str | None
    repeat: int
    """From 1."""

    def __str__(self) -> str:
        what = self.prompt or f"{self.input_len}/{self.output_len}"
        return f"c={self.concurrency} {what} #{self.repeat}"


def plan_cells(work: Work) -> list[CellKey]:
    """Every cell in the order in which it is run. Pure, so that others can know the total beforehand.

    Raises:
        WorkloadError: an unknown prompt, nothing to run, or more than one unit may be.
    """
    _refuse_too_large(work)
    if isinstance(work, SpeedWork):
        keys = [
            CellKey(concurrency=1, input_len=None, output_len=work.max_tokens, prompt=prompt, repeat=repeat)
            # Repeats outside: those of one prompt lie apart in time, so their spread shows a drift of the machine,
            # and a cancelled unit still has every prompt.
            for repeat in range(1, work.repeats + 1)
            for prompt in work.prompts
        ]
        unknown = sorted(set(work.prompts) - set(CHAT_PROMPTS))
        if unknown:
            raise WorkloadError(f"Unknown prompt {unknown[0]!r}. Available: {', '.join(CHAT_PROMPTS)}.")
    elif isinstance(work, EvalWork):
        keys = [
            CellKey(
                concurrency=work.concurrency,
                input_len=None,
                output_len=work.max_tokens,
                prompt=f"questions {part.start + 1}-{part.stop}",
                repeat=1,
            )
            for part in slices(work)
        ]
    else:
        keys = [
            CellKey(
                concurrency=concurrency,
                input_len=shape.input_len,
                output_len=shape.output_len,
                prompt=None,
                repeat=repeat,
            )
            for shape in work.shapes
            for concurrency in work.concurrency
            for repeat in range(1, work.repeats + 1)
        ]
    if not keys:
        raise WorkloadError(f"This {work.kind} has no cells: give at least one prompt, or one shape and concurrency.")
    if len(set(keys)) < len(keys):
        raise WorkloadError(f"This {work.kind} names the same prompt, shape or concurrency twice.")
    return keys


def slices(work: EvalWork) -> list[range]:
    """The questions of each cell of an eval, counted from 0."""
    size = _slice_size(work)
    return [range(start, min(start + size, work.asked)) for start in range(0, work.asked, size)]


def _slice_size(work: EvalWork) -> int:
    return max(SMALLEST_SLICE, WAVES_IN_A_SLICE * work.concurrency)


def _refuse_too_large(work: Work) -> None:
    """Counted, since a list of that length is itself what must not be made."""
    if isinstance(work, SpeedWork):
        cells = requests = len(work.prompts) * work.repeats
    elif isinstance(work, EvalWork):
        cells, requests = math.ceil(work.asked / _slice_size(work)), work.asked
    else:
        bursts = len(work.shapes) * work.repeats
        cells, requests = bursts * len(work.concurrency), bursts * sum(work.concurrency)
    if cells > MAX_CELLS or requests > MAX_REQUESTS:
        raise WorkloadError(
            f"This {work.kind} has {cells:,} cells and {requests:,} requests; a unit may have {MAX_CELLS:,} and "
            f"{MAX_REQUESTS:,}. Give fewer repeats, shapes, prompts or questions, or make several units of it."
        )


def workload_hash(work: Work) -> str:
    """Equal for runs that may be compared: the work, the texts and the generator count, the seed does not."""
    texts = _texts(work)
    identity = {
        "generator": GENERATOR_VERSION,
        "work": work.model_dump(mode="json"),
        "texts": [hashlib.sha256(text.encode()).hexdigest() for text in texts],
    }
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _texts(work: Work) -> list[str]:
    match work:
        case SpeedWork():
            return [CHAT_PROMPTS[name] for name in work.prompts]
        case EvalWork():
            return []  # the work holds the hash of the questions
        case _:
            return [" ".join(WORDS)]


class PromptSource:
    """Words for every prompt of one start of a unit; no two prompts begin with the same two words.

    Prompts have ordinals. Ordinals next to each other begin with different words, up to the length of the list, so a
    burst that takes consecutive ones shares not even its first token. `start` counts the starts of this unit: a
    resumed run sends a cut-off cell again, and its old prompts may lie in the engine's prefix cache.
    """

    def __init__(self, seed: int, start: int = 0) -> None:
        self._seed = f"rigbench/{GENERATOR_VERSION}/{seed}/{start}"
        order = random.Random(self._seed)
        # str seeds go through SHA-512, so they do not depend on the interpreter's hash seed.
        self._first = order.sample(WORDS, len(WORDS))
        self._second = order.sample(WORDS, len(WORDS))
        self._next = 0

    def take(self, count: int) -> list[Iterator[str]]:
        """Endless words for the next `count` prompts. Warm-up and calibration take theirs here too, so all differ."""
        ordinals = range(self._next, self._next + count)
        self._next += count
        return [self._words(ordinal) for ordinal in ordinals]

    def lead(self) -> str:
        """Two words to stand before a text that must not be found in any cache."""
        words = self.take(1)[0]
        return f"{next(words)} {next(words)}"

    def _words(self, ordinal: int) -> Iterator[str]:
        size = len(WORDS)
        yield self._first[ordinal % size]
        # Shifted by one on each round through the first words: the pairs repeat only after size * size prompts.
        yield self._second[(ordinal + ordinal // size) % size]
        rest = random.Random(f"{self._seed}/{ordinal}")
        while True:
            yield rest.choice(WORDS)


def chat_text(prompt: str, lead: str) -> str:
    """A chat prompt as it is sent: a label that makes it unique from its first token, then the text itself."""
    return f"{lead} is the label of this request; please ignore it.\n\n{CHAT_PROMPTS[prompt]}"


def chat_request(
    spec: UnitSpec, *, request_id: str, text: str, max_tokens: int, extra: Mapping[str, Any] | None = None
) -> Request:
    """One streamed, greedy chat turn, encoded. The engine's own fields win over ours, `extra` over both."""
    messages = [{"role": "user", "content": text}]
    return messages_request(spec, request_id=request_id, messages=messages, max_tokens=max_tokens, extra=extra)


def messages_request(
    spec: UnitSpec,
    *,
    request_id: str,
    messages: Sequence[Mapping[str, Any]],
    max_tokens: int,
    extra: Mapping[str, Any] | None = None,
) -> Request:
    """The same of any messages."""
    fields = spec.endpoint.request
    body: dict[str, Any] = {
        "model": spec.endpoint.model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": fields.stream_options,
        **fields.body,
        **(extra or {}),
    }
    return Request(
        id=request_id,
        path=CHAT_PATH,
        body=orjson.dumps(body),
        timeout_s=spec.request_timeout_s,
        idle_timeout_s=spec.idle_timeout_s,
    )
