"""Bursts of requests at once, over shapes, concurrencies and repeats. What a server gives under load."""

from __future__ import annotations

from dataclasses import dataclass

from evals.fitting import Fitter
from evals.record import Request
from evals.spec import UnitSpec
from evals.workload import CellKey, PromptSource, chat_request

WARM_UP_REQUESTS = 4
"""Where the endpoint's `parallel` is not known; a full burst of 64 would cost minutes on a small rig."""
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    spec: UnitSpec
    prompts: PromptSource
    fitter: Fitter

    def infeasible(self, key: CellKey) -> str | None:
        assert key.input_len is not None
        smallest = self.fitter.smallest_prompt
        if key.input_len < smallest:
            return (
                f"a prompt of {key.input_len} tokens is shorter than the chat template and one word, "
                f"which take {smallest}"
            )
        room = self.spec.endpoint.context_tokens
        total = key.input_len + key.output_len
        if room is not None and total > room:
            return f"{key.input_len} + {key.output_len} = {total} tokens do not fit a context of {room}"
        return None

    async def warm_up(self, key: CellKey) -> list[Request]:
        """A small burst of the first cell's prompts, not recorded."""
        largest = self.spec.endpoint.parallel or WARM_UP_REQUESTS
        count = min(largest, max(getattr(self.spec.work, "concurrency", (1,))))
        return await self._burst("warm-up", key, count, min(WARM_UP_TOKENS, key.output_len))

    async def requests(self, key: CellKey, ordinal: int) -> list[Request]:
        return await self._burst(str(ordinal), key, key.concurrency, key.output_len)

    async def _burst(self, name: str, key: CellKey, count: int, max_tokens: int) -> list[Request]:
        assert key.input_len is not None
        texts = await self.fitter.fit(self.prompts.take(count), key.input_len)
        exact = self.spec.endpoint.request.exact_length
        return [
            chat_request(self.spec, request_id=f"{name}-{number}", text=text, max_tokens=max_tokens, extra=exact)
            for number, text in enumerate(texts)
        ]
