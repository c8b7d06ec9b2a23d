"""A report as Markdown: what is doubtful first, then the figures, then what they mean and where they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from evals.report import Cell, Report
from evals.statistics import median
from rigs.serving import Arm

NONE = "-"


def render(report: Report) -> str:
    """Total: any valid report gives a page, with `-` for what it lacks. Ends in a newline."""
    sections = (
        [f"# {report.kind.capitalize()}: {describe_arm(report.arm)}"],
        _summary(report),
        _bullets("Warnings", report.warnings),
        _speed(report),
        _eval(report),
        *(_shape(cells) for cells in _by_shape(report.cells)),
        _failures(report),
        _client(report),
        _definitions(report),
        _provenance(report),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def describe_arm(arm: Arm) -> str:
    drafter = None
    if arm.drafter is not None:
        model = f" {arm.drafter.model.name}" if arm.drafter.model else ""
        drafter = f"{arm.drafter.method} drafter{model}, {arm.draft_tokens or arm.drafter.draft_tokens} drafted tokens"
    engine = " ".join(word for word in (arm.engine, arm.engine_version) if word) or None
    words = (arm.rig, arm.accelerator, engine, arm.checkpoint.name if arm.checkpoint else None, drafter)
    return _inline(", ".join(word for word in words if word) or "unnamed arm")


def _summary(report: Report) -> list[str]:
    ok = sum(cell.requests.ok for cell in report.cells)
    failed = sum(cell.requests.failed for cell in report.cells)
    states = {status: sum(cell.status == status for cell in report.cells) for status in _order(report.cells)}
    cells = ", ".join(f"{count} {status}" for status, count in states.items())
    return [
        f"**{report.status}**" + (f": {_inline(report.reason)}" if report.reason else ""),
        "",
        f"- report `{report.report_id}`, {report.started_at or NONE} to {report.finished_at or NONE}",
        f"- cells: {cells or 'none'}; requests: {ok} ok, {failed} failed",
        f"- workload `{report.workload_hash[:12]}`, seed {report.seed}",
        f"- raw requests: `{report.requests_path}`",
    ]


def _order(cells: Sequence[Cell]) -> Iterable[str]:
    return dict.fromkeys(cell.status for cell in cells)


def _bullets(title: str, items: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *(f"- {_inline(item)}" for item in items)] if items else []


def _speed(report: Report) -> list[str]:
    if report.speed is None:
        return []
    speed = report.speed
    rows = [
        (
            prompt.prompt,
            _number(prompt.decode_tok_s),
            _number(prompt.e2e_tok_s),
            _number(prompt.ttft_ms),
            str(prompt.n),
            NONE if prompt.spread is None else f"{prompt.spread:.1%}",
        )
        for prompt in speed.prompts
    ]
    geomean = _number(speed.geomean_decode_tok_s)
    acceptance = NONE
    if speed.acceptance is not None:
        found = speed.acceptance
        acceptance = f"{found.share:.1%} ({found.accepted} of {found.drafted} drafted tokens, by {found.source})"
    totals = (
        f"Geometric mean over prompts: **{geomean} tok/s**{_because(speed.missing, 'geomean_decode_tok_s')}. "
        f"Acceptance: {acceptance}{_because(speed.missing, 'acceptance')}."
    )
    names = ("prompt", "decode tok/s", "e2e tok/s", "ttft ms", "n", "spread")
    return ["## One request at a time", "", *_table(names, rows), "", totals]


def _because(missing: dict[str, str], name: str) -> str:
    return f" ({_inline(missing[name])})" if name in missing else ""


def _eval(report: Report) -> list[str]:
    if report.eval is None:
        return []
    found = report.eval
    names = ["data set", "asked", "right", "score", "95 % range", "not answered", "cut off"]
    row = [
        found.dataset,
        str(found.n),
        str(found.correct),
        _share(found.score),
        f"{_share(found.score_low)} to {_share(found.score_high)}",
        str(found.not_answered),
        str(found.cut_off),
    ]
    for name, share in (("lm-eval strict", found.lm_eval_strict), ("lm-eval flexible", found.lm_eval_flexible)):
        if share is not None:
            names.append(name)
            row.append(_share(share))
    files = f"Scorer `{found.scorer_version}`. Every question's raw reply and verdict: `{found.items_path}`."
    return ["## Score", "", *_table(names, [row]), "", files]


def _share(value: float) -> str:
    return f"{value:.1%}"


def _by_shape(cells: Sequence[Cell]) -> list[list[Cell]]:
    shapes: dict[tuple[int | None, int], list[Cell]] = {}
    for cell in cells:
        if cell.prompt is None:
            shapes.setdefault((cell.input_len, cell.output_len), []).append(cell)
    return list(shapes.values())


def _shape(cells: Sequence[Cell]) -> list[str]:
    first = cells[0]
    rows = [
        _concurrency_row(concurrency, [cell for cell in cells if cell.concurrency == concurrency])
        for concurrency in dict.fromkeys(cell.concurrency for cell in cells)
    ]
    names = ("concurrency", "output tok/s", "ttft p50 ms", "ttft p99 ms", "tpot p50 ms", "ok", "failed", "cells", "")
    return [
        f"## {first.input_len} tokens in, {first.output_len} out",
        "",
        *_table(names, rows),
        "",
        "Each figure is the median over the repeats.",
    ]


def _concurrency_row(concurrency: int, cells: Sequence[Cell]) -> tuple[str, ...]:
    ttft = [cell.ttft_ms for cell in cells if cell.ttft_ms is not None]
    tpot = [cell.tpot_ms.p50 for cell in cells if cell.tpot_ms is not None]
    ok = sum(cell.status == "ok" for cell in cells)
    remarks = dict.fromkeys(f"{cell.status}: {cell.reason}" for cell in cells if cell.status != "ok")
    return (
        str(concurrency),
        _number(median([cell.total_output_tok_s for cell in cells if cell.total_output_tok_s is not None])),
        _number(median([times.p50 for times in ttft])),
        _number(median([times.p99 for times in ttft])),
        _number(median(tpot), digits=2),
        str(sum(cell.requests.ok for cell in cells)),
        str(sum(cell.requests.failed for cell in cells)),
        f"{ok} of {len(cells)}",
        "; ".join(remarks),
    )


def _failures(report: Report) -> list[str]:
    shown = 20
    items = [f"{failure.where}: {failure.reason} ({failure.count} requests)" for failure in report.failures[:shown]]
    if len(report.failures) > shown:
        items.append(f"and {len(report.failures) - shown} more in the report")
    return _bullets("Failures", items)


def _client(report: Report) -> list[str]:
    if report.client is None:
        return []
    client = report.client
    why = f" ({'; '.join(map(_inline, client.reasons))})" if client.reasons else ""
    return [
        "## The measuring client",
        "",
        f"Verdict: **{client.verdict}**{why}.",
        "",
        *_table(
            ("cpu share", "cpu ms per 1,000 chunks", "loop lag p99 ms", "send spread ms", "connections", "in flight"),
            [
                (
                    _number(client.cpu_share, digits=2),
                    _number(client.cpu_ms_per_1k_chunks),
                    _number(client.loop_lag_p99_ms, digits=2),
                    _number(client.send_spread_ms, digits=2),
                    _number(client.connections, digits=0),
                    f"{_number(client.peak_in_flight, digits=0)} of {_number(client.asked_in_flight, digits=0)}",
                )
            ],
        ),
    ]


def _definitions(report: Report) -> list[str]:
    return _bullets("Definitions", [f"**{name}**: {words}" for name, words in report.definitions.items()])


def _provenance(report: Report) -> list[str]:
    facts = {"arm": report.arm.model_dump(mode="json"), **report.provenance}
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    # A fence longer than any run of backticks inside cannot be closed from inside.
    fence = "```"
    while fence in text:
        fence += "`"
    return ["## Provenance", "", f"{fence}json", text, fence]


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        _row(names),
        "|" + "|".join(" --- " if number == 0 else " ---: " for number, _ in enumerate(names)) + "|",
        *(_row(row) for row in rows),
    ]


def _row(values: Sequence[str]) -> str:
    return "| " + " | ".join(_inline(value).replace("|", "\\|") for value in values) + " |"


def _inline(text: str) -> str:
    """On one line: a server's words may hold line breaks."""
    return " ".join(text.split())


def _number(value: float | None, *, digits: int = 1) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"
