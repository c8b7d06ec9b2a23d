"""One request at a time: each chat prompt, greedy, some repeats. What a single user feels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evals.record import Request
from evals.report import Acceptance, Cell, Speed, SpeedPrompt
from evals.spec import SpeedWork, UnitSpec
from evals.statistics import geometric_mean, mean, relative_spread
from evals.workload import CellKey, PromptSource, chat_request, chat_text

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRun:
    spec: UnitSpec
    prompts: PromptSource

    def infeasible(self, key: CellKey) -> str | None:
        room = self.spec.endpoint.context_tokens
        if room is not None and key.output_len >= room:
            return f"a reply of {key.output_len} tokens leaves no room for a prompt in a context of {room}"
        return None

    async def warm_up(self, key: CellKey) -> list[Request]:
        """Not recorded: the first request of a server pays for memory and kernels that the later ones find."""
        tokens = min(WARM_UP_TOKENS, key.output_len)
        return [self._request("warm-up-0", key, tokens)]

    async def requests(self, key: CellKey, ordinal: int) -> list[Request]:
        return [self._request(f"{ordinal}-0", key, key.output_len)]

    def _request(self, request_id: str, key: CellKey, max_tokens: int) -> Request:
        assert key.prompt is not None
        text = chat_text(key.prompt, self.prompts.lead())
        return chat_request(self.spec, request_id=request_id, text=text, max_tokens=max_tokens)


def summarise_speed(work: SpeedWork, cells: Sequence[Cell], *, source: str | None, drafting: bool) -> Speed:
    """`source` is where the stream tells drafted tokens, if it does; `drafting` whether a drafter is at work."""
    prompts = [_summarise_prompt(name, [cell for cell in cells if cell.prompt == name]) for name in work.prompts]
    missing: dict[str, str] = {}
    speeds = [prompt.decode_tok_s for prompt in prompts if prompt.decode_tok_s is not None]
    geomean = geometric_mean(speeds) if len(speeds) == len(prompts) else None
    if geomean is None:
        without = [prompt.prompt for prompt in prompts if prompt.decode_tok_s is None]
        # A mean over fewer prompts would look comparable with one over all of them.
        missing["geomean_decode_tok_s"] = f"no decode speed of {', '.join(without)}"
    drafted = sum(cell.drafted or 0 for cell in cells)
    accepted = sum(cell.accepted or 0 for cell in cells)
    acceptance = None
    if drafted and source:
        acceptance = Acceptance(drafted=drafted, accepted=accepted, share=accepted / drafted, source=source)
    elif not drafting:
        missing["acceptance"] = "no drafter"
    elif source is None:
        missing["acceptance"] = "the engine's stream has no draft counts"
    else:
        missing["acceptance"] = f"the stream told no drafted token at {source}"
    return Speed(prompts=prompts, geomean_decode_tok_s=geomean, acceptance=acceptance, missing=missing)


def _summarise_prompt(name: str, cells: Sequence[Cell]) -> SpeedPrompt:
    decode = [cell.decode_tok_s for cell in cells if cell.decode_tok_s is not None]
    return SpeedPrompt(
        prompt=name,
        decode_tok_s=mean(decode),
        e2e_tok_s=mean([cell.e2e_tok_s for cell in cells if cell.e2e_tok_s is not None]),
        ttft_ms=mean([cell.ttft_ms.mean for cell in cells if cell.ttft_ms is not None]),
        n=sum(cell.requests.ok for cell in cells),
        spread=relative_spread(decode),
    )
