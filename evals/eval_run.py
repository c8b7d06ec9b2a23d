"""Questions asked once each, greedy, and scored. What a model knows on this engine, at these settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from evals import bfcl, gsm8k
from evals.cells import key_of
from evals.errors import EndpointGoneError, EvalError, UnsupportedWorkError, WorkloadError
from evals.journal import RESULTS, Journal
from evals.questions import CallAnswer, ItemResult, Question, Verdict, needs_tools
from evals.record import Request, RequestRecord
from evals.report import Cell, Eval, Scores
from evals.spec import EvalWork, UnitSpec
from evals.statistics import wilson_range
from evals.workload import CellKey, messages_request, plan_cells, slices

SCORER_VERSIONS = {"gsm8k": gsm8k.SCORER_VERSION, "bfcl_simple": bfcl.SCORER_VERSION}
LM_EVAL = ("lm_eval_strict", "lm_eval_flexible")
CUT_OFF = "length"
"""The `finish_reason` of a reply that `max_tokens` ended."""


class AskingClient(Protocol):
    async def get_json(self, path: str) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRun:
    spec: UnitSpec
    questions: Mapping[CellKey, Sequence[Question]]
    """Those of each cell."""

    @classmethod
    def of(cls, spec: UnitSpec, work: EvalWork, questions: Sequence[Question]) -> Self:
        parts = zip(plan_cells(work), slices(work), strict=True)
        return cls(spec=spec, questions={key: questions[part.start : part.stop] for key, part in parts})

    async def check_support(self, client: AskingClient) -> None:
        """Ask the engine whether the model's chat template knows tools, where that can be asked.

        Raises:
            UnsupportedWorkError: it does not, and the questions need them.
            EndpointGoneError: nothing answers.
        """
        probe = self.spec.endpoint.request.tools_probe
        if probe is None or not any(needs_tools(part) for part in self.questions.values()):
            return
        found: Any = None
        try:
            found = await client.get_json(probe.path)
        except EndpointGoneError:
            raise
        except EvalError:
            return  # not told is not "no": the first requests show it
        for step in probe.key.split("."):
            found = found.get(step) if isinstance(found, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # JSON of a peer
        if found is False:
            raise UnsupportedWorkError(
                f"The chat template of {self.spec.endpoint.model!r} knows no tools ({probe.key} at {probe.path} is "
                f"false), and these questions are answered by tool calls. Nothing was sent; serve a model with tools."
            )

    def infeasible(self, key: CellKey) -> str | None:
        room = self.spec.endpoint.context_tokens
        if room is not None and key.output_len >= room:
            return f"a reply of {key.output_len} tokens leaves no room for a question in a context of {room}"
        return None

    async def warm_up(self, key: CellKey) -> list[Request]:  # noqa: ARG002 - nothing here is about speed
        return []

    async def requests(self, key: CellKey, ordinal: int) -> list[Request]:
        return [
            messages_request(
                self.spec,
                request_id=f"{ordinal}-{number}",
                messages=[message.model_dump() for message in question.messages],
                max_tokens=key.output_len,
                extra={"tools": list(question.tools)} if question.tools else None,
            )
            for number, question in enumerate(self.questions[key])
        ]

    def results(self, key: CellKey, ordinal: int, records: Sequence[RequestRecord]) -> list[ItemResult]:
        """Score the replies of a cell; `records` are in the order of its questions, or none where nothing was sent."""
        if not records:
            return []
        return [
            _result(question, ordinal, record) for question, record in zip(self.questions[key], records, strict=True)
        ]


def _result(question: Question, ordinal: int, record: RequestRecord) -> ItemResult:
    tool_calls = json.loads(_as_utf8(json.dumps(record.tool_calls, ensure_ascii=False)))
    answered = record.status == "ok"
    return ItemResult(
        cell=ordinal,
        id=question.id,
        answered=answered,
        reason=None if record.reason is None else _as_utf8(record.reason),
        verdict=_judge(question, answered=answered, text=record.text, tool_calls=tool_calls),
        scorer_version=_scorer_version(question),
        finish_reason=record.finish_reason,
        text=record.text,
        reasoning=record.reasoning,
        tool_calls=tool_calls,
    )


def _judge(question: Question, *, answered: bool, text: str, tool_calls: Sequence[Mapping[str, Any]]) -> Verdict:
    answer = question.answer
    if isinstance(answer, CallAnswer):
        return bfcl.score(answer, tool_calls) if answered else Verdict(correct=False, why_wrong="not answered")
    if answered:
        return gsm8k.score(answer, text)
    return Verdict(correct=False, why_wrong="not answered", lm_eval_strict=False, lm_eval_flexible=False)


def _scorer_version(question: Question) -> str:
    return SCORER_VERSIONS["bfcl_simple" if isinstance(question.answer, CallAnswer) else "gsm8k"]


def _as_utf8(text: str) -> str:
    """A model may send half a surrogate pair, which no UTF-8 file takes."""
    return text.encode("utf-8", "replace").decode()


def with_scores(cell: Cell, results: Sequence[ItemResult]) -> Cell:
    """The cell with the sums of its questions' results; the same cell where there are none."""
    if not results:
        return cell
    verdicts = [result.verdict for result in results]
    scores = Scores(
        n=len(results),
        correct=sum(verdict.correct for verdict in verdicts),
        not_answered=sum(not result.answered for result in results),
        cut_off=sum(result.answered and result.finish_reason == CUT_OFF for result in results),
        lm_eval_strict=_total(verdict.lm_eval_strict for verdict in verdicts),
        lm_eval_flexible=_total(verdict.lm_eval_flexible for verdict in verdicts),
    )
    return cell.model_copy(update={"scores": scores})


def _total(values: Iterable[int | None]) -> int | None:
    """The sum; None where the data set has no such value."""
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def rescore(journal: Journal, questions: Sequence[Question]) -> None:
    """Score again what an earlier start recorded, so that one report never mixes two versions of a scorer.

    Raises:
        WorkloadError: the recorded results are not those of these questions.
        RigFullError: no space; the old scores stay.
    """
    by_id = {question.id: question for question in questions}
    old = journal.results()
    strange = [result.id for result in old if result.id not in by_id]
    if strange:
        raise WorkloadError(f"{journal.run_dir} holds a result of {strange[0]!r}, which is no question of this unit.")
    new = [_rescored(result, by_id[result.id]) for result in old]
    cells = [
        with_scores(cell, [result for result in new if journal.plan[result.cell - 1] == key_of(cell)])
        for cell in journal.cells.values()
    ]
    if new != old or cells != list(journal.cells.values()):
        journal.rewrite(cells, new)


def _rescored(result: ItemResult, question: Question) -> ItemResult:
    verdict = _judge(question, answered=result.answered, text=result.text, tool_calls=result.tool_calls)
    return result.model_copy(update={"verdict": verdict, "scorer_version": _scorer_version(question)})


def summarise_eval(work: EvalWork, cells: Sequence[Cell]) -> Eval | None:
    """Sum up the cells that ran; None where none did."""
    scores = [cell.scores for cell in cells if cell.scores is not None]
    n = sum(part.n for part in scores)
    if not n:
        return None
    correct = sum(part.correct for part in scores)
    low, high = wilson_range(correct, n)
    strict, flexible = (_total(getattr(part, name) for part in scores) for name in LM_EVAL)
    return Eval(
        dataset=work.dataset,
        n=n,
        correct=correct,
        score=correct / n,
        score_low=low,
        score_high=high,
        not_answered=sum(part.not_answered for part in scores),
        cut_off=sum(part.cut_off for part in scores),
        lm_eval_strict=None if strict is None else strict / n,
        lm_eval_flexible=None if flexible is None else flexible / n,
        scorer_version=SCORER_VERSIONS[work.dataset],
        items_path=RESULTS,
    )


def describe_score(found: Eval) -> str:
    words = f"{found.dataset}: {found.correct} of {found.n} right, {found.score:.1%}"
    return f"{words} (95 % range {found.score_low:.1%} to {found.score_high:.1%})"
