"""A report as one HTML page that needs nothing else: doubts first, then figures, charts, tables and where it came from.

Whatever a report holds is data to the template, which escapes all of it; a model's or an engine's words can neither
become markup nor run, and the page's policy would stop them if they could.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from evals.cells import key_of
from evals.errors import IncomparableReportsError
from evals.render import curves as figure_of
from evals.render.curves import Curve, Figure, curves, prompt_speeds, tell_apart
from evals.render.markdown import describe_arm
from evals.report import Cell, Report
from rigs.serving import Arm

FOLDER = Path(__file__).parent
MAX_FAILURES = 200
_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart as the page holds it."""

    title: str
    note: str
    svg: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    name: str
    value: str
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One entry of a table: what is shown, and what it is sorted by."""

    text: str
    key: float | str | None = None
    why: str = ""
    """Why there is no value."""
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: list[list[Value]]
    note: str = ""
    text_columns: tuple[str, ...] = ()
    """Words, which stand to the left; all else are numbers."""


def render(report: Report, pictures: Sequence[Picture], against: Report | None = None) -> str:
    """Total: any valid report gives a page.

    Raises:
        IncomparableReportsError: `against` is of another kind or workload.
    """
    if against is not None:
        check_alike(report, against)
    reports = [report] if against is None else [report, against]
    names = tell_apart(reports) if against is not None else []
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    return environment.get_template(
        "page.html.j2"
    ).render(
        report=report,
        against=against,
        names=names,
        title=describe_arm(report.arm),
        doubts=_doubts(report, against, names),
        headlines=headlines(report, against),
        pictures=[{"title": p.title, "note": p.note, "svg": Markup(p.svg)} for p in pictures],  # noqa: S704 - ours
        tables=tables(report, against, names),
        missing=_missing(report.cells),
        failures=report.failures[:MAX_FAILURES],
        failures_left=max(0, len(report.failures) - MAX_FAILURES),
        client=_client(report),
        arms=_arms(reports),
        provenance=json.dumps(_provenance(report), indent=2, ensure_ascii=False),
        style=Markup(style),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704 - a file of ours
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def check_alike(report: Report, against: Report) -> None:
    """Refuse to put unlike things side by side.

    Raises:
        IncomparableReportsError: in words.
    """
    for what, own, other in (
        ("kind", report.kind, against.kind),
        ("workload", report.workload_hash, against.workload_hash),
    ):
        if own != other:
            raise IncomparableReportsError(
                f"{report.report_id} and {against.report_id} differ in their {what} ({own[:12]} and {other[:12]}), so "
                f"their figures say nothing about each other. Measure both with the same prompts, lengths and repeats."
            )


def headlines(report: Report, against: Report | None) -> list[Headline]:
    """The few figures that a reader looks for first."""
    found: list[Headline] = []
    found += _speed_headlines(report, against) if report.speed else _load_headlines(report, against)
    if report.eval:
        scored = report.eval
        note = f"{scored.correct} of {scored.n} correct, {scored.dataset}"
        found.append(Headline(name="Score", value=f"{100 * scored.score:.1f}", unit="%", note=note))
    ok = sum(cell.requests.ok for cell in report.cells)
    failed = sum(cell.requests.failed for cell in report.cells)
    note = f"{failed:,} failed" if failed else "none failed" if ok else "none was sent"
    found.append(Headline(name="Requests", value=f"{ok:,}", unit="ok", note=note))
    if report.cost_usd is not None:
        found.append(Headline(name="Cost", value=f"{report.cost_usd:,.2f}", unit="USD"))
    return found


def tables(report: Report, against: Report | None, names: Sequence[str]) -> list[Table]:
    """Medians first, every cell last."""
    found = [_load_table(curve) for curve in curves(report)]
    if report.speed or prompt_speeds(report):
        found.append(_speed_table(report, against, names))
    return [*found, _cells_table(report)]


def _speed_headlines(report: Report, against: Report | None) -> list[Headline]:
    speed = report.speed
    assert speed is not None
    geomean = speed.geomean_decode_tok_s
    prompts = len(speed.prompts)
    note = speed.missing.get("geomean_decode_tok_s") or f"geometric mean over {prompts} prompts, one request at a time"
    found = [Headline(name="Decode speed", value=_short(geomean), unit="tokens/s", note=note)]
    other = against.speed.geomean_decode_tok_s if against and against.speed else None
    if against:
        ratio = f"{geomean / other:.2f}" if geomean and other else "\u2013"
        found.append(Headline(name="Ratio", value=ratio, unit="\u00d7", note=f"against {_short(other)} tokens/s"))
    firsts = figure_of.finite(line.ttft_ms for line in speed.prompts)
    if firsts:
        span = "\u2013".join(dict.fromkeys((_short(min(firsts)), _short(max(firsts)))))
        found.append(Headline(name="Time to first token", value=span, unit="ms", note="mean per prompt"))
    if speed.acceptance:
        kept = speed.acceptance
        note = f"{kept.accepted:,} of {kept.drafted:,} drafted tokens"
        found.append(Headline(name="Drafts kept", value=f"{100 * kept.share:.1f}", unit="%", note=note))
    return found


def _load_headlines(report: Report, against: Report | None) -> list[Headline]:
    best = _peak(report)
    if best is None:
        return []
    peak, curve, number = best
    point = curve.points[number]
    where = f"{curve.label}, concurrency {point.concurrency}"
    found = [Headline(name="Highest throughput", value=_short(peak), unit="tokens/s", note=where)]
    other = _peak(against) if against else None
    if other:
        note = f"against {_short(other[0])} tokens/s"
        found.append(Headline(name="Ratio", value=f"{peak / other[0]:.2f}" if other[0] else "\u2013", note=note))
    first = point.median(figure_of.ttft_ms_p50)
    if first is not None:
        p99 = _short(point.median(figure_of.ttft_ms_p99))
        found.append(Headline(name="TTFT at that load", value=_short(first), unit="ms", note=f"p50; p99 {p99} ms"))
    lowest = curve.points[0]
    alone = lowest.median(figure_of.ttft_ms_p50)
    if alone is not None and lowest is not point:
        note = f"p50, {curve.label}"
        found.append(
            Headline(name=f"TTFT at concurrency {lowest.concurrency}", value=_short(alone), unit="ms", note=note)
        )
    return found


def _peak(report: Report) -> tuple[float, Curve, int] | None:
    best: tuple[float, Curve, int] | None = None
    for curve in curves(report):
        for number, point in enumerate(curve.points):
            value = point.median(figure_of.total_output_tok_s)
            if value is not None and (best is None or value > best[0]):
                best = (value, curve, number)
    return best


def _load_table(curve: Curve) -> Table:
    figures: tuple[tuple[str, Figure, int], ...] = (
        ("output tokens/s", figure_of.total_output_tok_s, 1),
        ("TTFT p50 ms", figure_of.ttft_ms_p50, 1),
        ("TTFT p99 ms", figure_of.ttft_ms_p99, 1),
        ("TPOT p50 ms", figure_of.tpot_ms_p50, 2),
        ("E2E p50 ms", figure_of.e2e_ms_p50, 1),
        ("decode tokens/s", figure_of.decode_tok_s, 1),
    )
    rows = [
        [
            Value(text=f"{point.concurrency:,}", key=point.concurrency),
            *(_measured(point.median(figure), digits) for _, figure, digits in figures),
            _count(sum(cell.requests.ok for cell in point.cells)),
            _count(sum(cell.requests.failed for cell in point.cells)),
            Value(text=f"{point.ok_cells} of {len(point.cells)}", key=point.ok_cells),
            Value(text="; ".join(point.remarks)),
        ]
        for point in curve.points
    ]
    columns = ("concurrency", *(name for name, _, _ in figures), "ok", "failed", "cells ok", "remarks")
    return Table(
        title=f"{curve.label}",
        columns=columns,
        rows=rows,
        note="Figures are medians over the repeats, requests are sums.",
        text_columns=("remarks",),
    )


def _speed_table(report: Report, against: Report | None, names: Sequence[str]) -> Table:
    told = {line.prompt: line for line in report.speed.prompts} if report.speed else {}
    others = {line.prompt: line.decode_tok_s for line in prompt_speeds(against)} if against else {}
    rows: list[list[Value]] = []
    for speed in prompt_speeds(report):
        line = told.get(speed.prompt)
        compared: list[Value] = []
        if against:
            other = others.get(speed.prompt)
            ratio = speed.decode_tok_s / other if speed.decode_tok_s and other else None
            compared = [_measured(other), _measured(ratio, 2)]
        rows.append(
            [
                Value(text=speed.prompt),
                _measured(speed.decode_tok_s),
                *compared,
                _measured(line.e2e_tok_s if line else None),
                _measured(line.ttft_ms if line else None),
                _count(line.n if line else 0),
                _measured(100 * line.spread if line and line.spread is not None else None),
                _measured(speed.acceptance_percent),
            ]
        )
    extra = (f"decode tokens/s, {names[1]}", "ratio") if against else ()
    own = f"decode tokens/s, {names[0]}" if against else "decode tokens/s"
    columns = ("prompt", own, *extra, "E2E tokens/s", "TTFT ms", "n", "spread %", "drafts kept %")
    note = "Figures are means over the repeats."
    if against:
        note += " The ratio is of the means."
    return Table(title="One request at a time", columns=columns, rows=rows, note=note, text_columns=("prompt",))


CELL_COLUMNS: tuple[tuple[str, str, Figure, int], ...] = (
    ("output tokens/s", "total_output_tok_s", figure_of.total_output_tok_s, 1),
    ("decode tokens/s", "decode_tok_s", figure_of.decode_tok_s, 1),
    ("TTFT p50 ms", "ttft_ms", figure_of.ttft_ms_p50, 1),
    ("TTFT p99 ms", "ttft_ms", figure_of.ttft_ms_p99, 1),
    ("TPOT p50 ms", "tpot_ms", figure_of.tpot_ms_p50, 2),
    ("E2E p50 ms", "e2e_ms", figure_of.e2e_ms_p50, 1),
    ("tokens in", "input_tokens", lambda cell: cell.input_tokens.got, 1),
    ("tokens out", "output_tokens", lambda cell: cell.output_tokens.got, 1),
    ("cached", "cached_tokens", lambda cell: cell.cached_tokens, 0),
    ("drafted", "drafted", lambda cell: cell.drafted, 0),
    ("accepted", "accepted", lambda cell: cell.accepted, 0),
)


def _cells_table(report: Report) -> Table:
    names = ("cell", "status", "ok", "failed", *(name for name, _, _, _ in CELL_COLUMNS), "client", "reason")
    return Table(
        title="Every cell",
        columns=names,
        rows=[_cell_row(number, cell) for number, cell in enumerate(report.cells)],
        text_columns=("cell", "status", "client", "reason"),
    )


def _cell_row(number: int, cell: Cell) -> list[Value]:
    return [
        Value(text=str(key_of(cell)), key=number),
        Value(text=cell.status, status=cell.status),
        _count(cell.requests.ok),
        _count(cell.requests.failed),
        *(
            _measured(figure(cell), digits, why=cell.missing.get(field, ""))
            for _, field, figure, digits in CELL_COLUMNS
        ),
        Value(text=cell.client.verdict if cell.client else "\u2013"),
        Value(text=cell.reason or ""),
    ]


def _measured(value: float | None, digits: int = 1, *, why: str = "") -> Value:
    known = figure_of.finite([value])
    return Value(text=_number(value, digits), key=round(known[0], 6) if known else None, why="" if known else why)


def _count(number: int) -> Value:
    return Value(text=f"{number:,}", key=number)


def _number(value: float | None, digits: int = 1) -> str:
    known = figure_of.finite([value])
    return f"{known[0]:,.{digits}f}" if known else "\u2013"


def _short(value: float | None) -> str:
    return _number(value, 0 if value is not None and abs(value) >= 1000 else 1)


def _missing(cells: Sequence[Cell]) -> list[tuple[str, str, int]]:
    """Why values are null -> their names, and in how many cells."""
    names: dict[str, dict[str, None]] = {}
    count: dict[str, int] = {}
    for cell in cells:
        for reason in set(cell.missing.values()):
            count[reason] = count.get(reason, 0) + 1
        for name, reason in cell.missing.items():
            names.setdefault(reason, {})[name] = None
    return [(reason, ", ".join(fields), count[reason]) for reason, fields in names.items()]


def _doubts(report: Report, against: Report | None, names: Sequence[str]) -> list[str]:
    if against is None:
        return report.warnings
    own = [f"{names[0]}: {warning}" for warning in report.warnings]
    other = [f"{names[1]}: {warning}" for warning in against.warnings]
    if against.status != "ok":
        other.insert(0, f"{names[1]}: {against.status}: {against.reason or 'no reason was given'}")
    return own + other


def _client(report: Report) -> list[tuple[str, str, str]]:
    """What, how much, and the limit of it."""
    client = report.client
    if client is None:
        return []
    limits = client.limits

    def limit(name: str, unit: str) -> str:
        return f"\u2264 {limits[name]:g} {unit}".rstrip() if name in limits else ""

    in_flight = f"{_number(client.peak_in_flight, 0)} of {_number(client.asked_in_flight, 0)}"
    share = limits.get("peak_in_flight_share")
    return [
        ("CPU, share of one core", _number(client.cpu_share, 2), limit("cpu_share", "")),
        ("CPU per 1,000 chunks", f"{_number(client.cpu_ms_per_1k_chunks)} ms", ""),
        ("loop lag, p99", f"{_number(client.loop_lag_p99_ms, 2)} ms", limit("loop_lag_p99_ms", "ms")),
        ("send spread of a burst", f"{_number(client.send_spread_ms, 2)} ms", limit("send_spread_ms", "ms")),
        ("peak in flight, of those asked", in_flight, f"\u2265 {share:.0%}" if share is not None else ""),
        ("connections opened", _number(client.connections, 0), ""),
        ("chunks received", _number(client.chunks, 0), ""),
    ]


def _arms(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    """What ran, a row a fact, a column a report."""
    columns = [_facts(report) for report in reports]
    return [(name, [column[name] for column in columns]) for name in columns[0]]


def _facts(report: Report) -> dict[str, str]:
    arm: Arm = report.arm
    model = arm.checkpoint
    drafter = arm.drafter
    return {
        "report": report.report_id,
        "rig": arm.rig or "\u2013",
        "accelerator": arm.accelerator or "\u2013",
        "engine": " ".join(word for word in (arm.engine, arm.engine_version) if word) or "\u2013",
        "checkpoint": model.name if model else "\u2013",
        "SHA-256 of it": (model.sha256 + (" (pinned on first use)" if model.pinned_on_first_use else ""))
        if model
        else "\u2013",
        "from": model.source if model else "\u2013",
        "drafter": f"{drafter.method}{f' {drafter.model.name}' if drafter.model else ''}" if drafter else "none",
        "drafted tokens": str(arm.draft_tokens or drafter.draft_tokens) if drafter else "\u2013",
        "command line": " ".join(arm.argv) if arm.argv else "\u2013",
        "workload": report.workload_hash,
        "seed": str(report.seed),
        "started": report.started_at or "\u2013",
        "finished": report.finished_at or "\u2013",
    }


def _provenance(report: Report) -> Mapping[str, object]:
    return {"arm": report.arm.model_dump(mode="json"), **report.provenance}


def _printable(value: object) -> object:
    """Of each value that goes into the page: without controls, which hide words or turn their direction."""
    return _UNSAFE.sub("\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value
