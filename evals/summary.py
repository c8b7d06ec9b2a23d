"""From the cells of a unit to its report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from evals.cells import FAILED_SHARE, cell_without_requests, key_of
from evals.eval_run import summarise_eval
from evals.report import DEFINITIONS, Cell, Eval, Failure, Report, ReportStatus, Speed
from evals.self_check import ClientCheck, judged, merge
from evals.spec import EvalWork, SpeedWork, SweepWork, UnitSpec
from evals.speed import summarise_speed
from evals.workload import CellKey, plan_cells, workload_hash

ENOUGH_FOR_P99 = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEarly:
    status: Literal["failed", "cancelled", "unsupported"]
    reason: str


def build_report(
    spec: UnitSpec,
    cells: Mapping[CellKey, Cell],
    *,
    started_at: str | None,
    requests_path: str,
    provenance: Mapping[str, JsonValue],
    ended: EndedEarly | None = None,
) -> Report:
    """Cells that are not in `cells` are `not_run`, or `unsupported`, for the reason of `ended`."""
    why = ended.reason if ended else "the unit has not come to it"
    state = "unsupported" if ended and ended.status == "unsupported" else "not_run"
    every = [cells.get(key) or cell_without_requests(key, state, why) for key in plan_cells(spec.work)]
    status, reason = _verdict(every, ended)
    return Report(
        report_id=spec.report_id,
        kind=spec.work.kind,
        status=status,
        reason=reason,
        started_at=started_at,
        finished_at=max((cell.finished_at for cell in every if cell.finished_at), default=None),
        seed=spec.seed,
        definitions=DEFINITIONS,
        workload_hash=workload_hash(spec.work),
        arm=spec.arm,
        cells=every,
        speed=_speed(spec, every),
        eval=_eval(spec, every),
        steady=None,
        client=_client(every),
        telemetry=None,
        cost_usd=None,
        provenance={**spec.provenance, **provenance},
        requests_path=requests_path,
        failures=_failures(every),
        warnings=_warnings(spec, every),
    )


def _client(cells: Sequence[Cell]) -> ClientCheck | None:
    checks = [cell.client for cell in cells if cell.client is not None]
    if not checks:
        return None
    merged = merge(checks)
    if merged.verdict == "ok":
        return merged
    # The cells' own reasons differ in their numbers only: one a kind, by the worst figure, tells as much as seventy.
    worst = judged(merged, any_failed=any(cell.requests.failed for cell in cells)).reasons
    return merged.model_copy(update={"reasons": worst or merged.reasons[:3]})


def _speed(spec: UnitSpec, cells: Sequence[Cell]) -> Speed | None:
    if not isinstance(spec.work, SpeedWork):
        return None
    source = spec.endpoint.request.stream_keys.drafted
    drafting = spec.arm.drafter is not None or any(cell.drafted for cell in cells)
    return summarise_speed(spec.work, cells, source=source, drafting=drafting)


def _eval(spec: UnitSpec, cells: Sequence[Cell]) -> Eval | None:
    return summarise_eval(spec.work, cells) if isinstance(spec.work, EvalWork) else None


def _verdict(cells: Sequence[Cell], ended: EndedEarly | None) -> tuple[ReportStatus, str | None]:
    if ended is not None:
        return ended.status, ended.reason
    if all(cell.status == "infeasible" for cell in cells):
        return "infeasible", f"no cell can be run: {cells[0].reason}"
    ok = sum(cell.requests.ok for cell in cells)
    failed = sum(cell.requests.failed for cell in cells)
    if failed > FAILED_SHARE * (ok + failed):
        reasons: dict[str, int] = {}
        for cell in cells:
            for reason, count in cell.failures.items():
                reasons[reason] = reasons.get(reason, 0) + count
        commonest = max(reasons, key=lambda reason: reasons[reason])
        return "failed", f"{failed} of {ok + failed} requests failed, most of them: {commonest}"
    if any(cell.status == "not_run" for cell in cells):
        return "failed", "not every cell was run"
    return "ok", None


def _failures(cells: Sequence[Cell]) -> list[Failure]:
    listed: list[Failure] = []
    for cell in cells:
        where = str(key_of(cell))
        listed += [Failure(where=where, reason=reason, count=count) for reason, count in cell.failures.items()]
        if cell.status not in {"ok", "not_run"} and not cell.failures:
            listed.append(Failure(where=where, reason=cell.reason or cell.status, count=0))
    return listed


def _warnings(spec: UnitSpec, cells: Sequence[Cell]) -> list[str]:
    """One sentence a kind, with numbers and one example: a list that is read."""
    measured = [cell for cell in cells if cell.requests.ok]
    found = (
        _client_limited(measured),
        _cache_hits(spec, measured),
        _wrong_lengths(measured, "prompt", lambda cell: (cell.input_tokens.mismatched, cell.input_tokens.got)),
        _wrong_lengths(measured, "reply", lambda cell: (cell.output_tokens.mismatched, cell.output_tokens.got)),
        _estimated_lengths(spec),
        _queueing(spec, measured),
        _partial_failures(spec, measured),
        _few_samples(spec, measured),
        _cut_off(measured),
    )
    return [warning for warning in found if warning]


def _client_limited(cells: Sequence[Cell]) -> str | None:
    limited = [cell for cell in cells if cell.client is not None and cell.client.verdict == "client_limited"]
    if not limited:
        return None
    client = limited[0].client
    assert client is not None
    return (
        f"client_limited: in {len(limited)} of {len(cells)} cells the measuring process itself was a limit, first in "
        f"{key_of(limited[0])} ({'; '.join(client.reasons)}). Those figures are no better than the client was."
    )


def _cache_hits(spec: UnitSpec, cells: Sequence[Cell]) -> str | None:
    if isinstance(spec.work, EvalWork):
        return None  # a score does not depend on it
    hit = [cell for cell in cells if cell.cached_tokens]
    if not hit:
        return None
    cached = sum(cell.cached_tokens or 0 for cell in hit)
    prompts = sum((cell.input_tokens.got or 0) * cell.requests.ok for cell in hit)
    share = f" of {prompts:.0f} ({cached / prompts:.1%})" if prompts else ""
    return (
        f"prefix cache: the server took {cached}{share} prompt tokens of {len(hit)} cells from a cache, so their "
        f"ttft_ms is too good. Every prompt was unique after the chat template; switch the cache off for a cold figure."
    )


def _wrong_lengths(cells: Sequence[Cell], what: str, read: Callable[[Cell], tuple[int, float | None]]) -> str | None:
    wrong = [cell for cell in cells if read(cell)[0]]
    if not wrong:
        return None
    count = sum(read(cell)[0] for cell in wrong)
    total = sum(cell.requests.ok for cell in cells)
    first = wrong[0]
    asked = first.input_len if what == "prompt" else first.output_len
    return (
        f"{what} lengths: {count} of {total} requests had another {what} length than asked, first in "
        f"{key_of(first)} (asked {asked}, got {read(first)[1]:.1f} on average)."
    )


def _estimated_lengths(spec: UnitSpec) -> str | None:
    if not isinstance(spec.work, SweepWork) or spec.endpoint.request.tokenize_path is not None:
        return None
    return (
        "prompt lengths were estimated: the endpoint has no tokenizer that we know, so prompts were made by tokens per "
        "word of two calibration requests. Read input_tokens.got."
    )


def _queueing(spec: UnitSpec, cells: Sequence[Cell]) -> str | None:
    parallel = spec.endpoint.parallel
    above = sorted({cell.concurrency for cell in cells if parallel is not None and cell.concurrency > parallel})
    if not above:
        return None
    return (
        f"queueing: the server decodes {parallel} requests at once, so at concurrency "
        f"{', '.join(map(str, above))} requests waited in it; their ttft_ms holds that wait."
    )


def _partial_failures(spec: UnitSpec, cells: Sequence[Cell]) -> str | None:
    partial = [cell for cell in cells if cell.requests.failed]
    if not partial:
        return None
    failed = sum(cell.requests.failed for cell in partial)
    if isinstance(spec.work, EvalWork):
        return f"failed requests: {failed} questions were not answered and count as wrong."
    return (
        f"failed requests: {failed} in {len(partial)} cells that have figures. Those are over the survivors, which "
        f"may have had the server more to themselves."
    )


def _few_samples(spec: UnitSpec, cells: Sequence[Cell]) -> str | None:
    if isinstance(spec.work, EvalWork):
        return None  # its times are by the way, and the score has its range
    few = [cell for cell in cells if cell.ttft_ms is not None and cell.ttft_ms.n < ENOUGH_FOR_P99]
    if not few:
        return None
    return (
        f"few samples: in {len(few)} of {len(cells)} cells p99 of ttft_ms, tpot_ms and e2e_ms is over fewer than "
        f"{ENOUGH_FOR_P99} requests; read it as the largest one."
    )


def _cut_off(cells: Sequence[Cell]) -> str | None:
    cut = sum(cell.scores.cut_off for cell in cells if cell.scores)
    if not cut:
        return None
    asked = sum(cell.scores.n for cell in cells if cell.scores)
    return (
        f"cut off: {cut} of {asked} replies ended at max_tokens ({cells[0].output_len}), most of them before their "
        f"answer; the score is that of a model which must be brief."
    )
