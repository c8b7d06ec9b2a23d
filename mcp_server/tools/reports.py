"""Reports: finding, reading and writing them in other forms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from mcp.server.mcpserver import Context, Image
from mcp.types import CallToolResult, ContentBlock, TextContent
from pydantic import BaseModel, Field

from evals.cells import key_of
from evals.report import Acceptance, Cell, Eval, Report
from mcp_server.app import App, app_of
from mcp_server.drawing import DRAWN, drawn_before
from mcp_server.edge import tool
from mcp_server.reports import load_report
from mcp_server.tools.measure import parse_shape
from mcp_server.tools.rigs import finished_or_raise
from mcp_server.views import JobView, job_view
from rigs.errors import UsageError

ReportId = Annotated[str, Field(description="As list_reports shows it; the same as the job's id.")]
SIZE_LIMIT = 8000
CELL_LIMIT = 16
WORD_LIMIT = 240
PREVIEW_LIMIT = 6000


class ReportLine(BaseModel):
    report_id: str
    kind: str
    rig: str
    status: str
    headline: str
    created_at: str


class ReportList(BaseModel):
    reports: list[ReportLine]
    next_step: str = "get_report(report_id=...)"


class CellRow(BaseModel):
    cell: str
    status: str
    reason: str | None = None
    ok: int
    failed: int
    ttft_ms_p50: float | None = None
    ttft_ms_p99: float | None = None
    tpot_ms_p50: float | None = None
    decode_tok_s: float | None = None
    total_output_tok_s: float | None = None
    right: int | None = None


class ArmView(BaseModel):
    rig: str | None
    accelerator: str | None
    engine: str | None
    engine_version: str | None
    checkpoint: str | None
    drafter: str | None
    draft_tokens: int | None


class SpeedView(BaseModel):
    geomean_decode_tok_s: float | None
    decode_tok_s: dict[str, float | None]
    acceptance: Acceptance | None


class ReportSummary(BaseModel):
    report_id: str
    kind: str
    status: str
    reason: str | None
    started_at: str | None
    finished_at: str | None
    arm: ArmView
    workload_hash: str
    requests_ok: int
    requests_failed: int
    cells_by_status: dict[str, int]
    best_cell: CellRow | None = Field(description="By total output tok/s.")
    worst_cell: CellRow | None
    speed: SpeedView | None
    eval: Eval | None = Field(description="The score, with its 95 % range.")
    client_verdict: str | None = Field(description="'client_limited': figures are partly the client's own.")
    warnings: list[str]
    failures: list[str]
    cells: list[CellRow] = Field(description="Those asked for, at most 16.")
    cells_matched: int
    path: str = Field(description="The whole report.")
    resource: str
    next_step: str = ""


class Rendered(BaseModel):
    job: JobView
    path: str | None
    paths: list[str] = Field(description="All files written; of png one a chart.")
    preview: str = Field(description="The beginning of the file, of markdown and csv.")
    next_step: str = ""


@tool("List reports", read_only=True)
def list_reports(ctx: Context[App], limit: int = 20) -> ReportList:
    """List reports, newest first, with the main figure of each."""
    units = app_of(ctx).state.units(limit=max(1, min(limit, 100)))
    return ReportList(
        reports=[
            ReportLine(
                report_id=unit.unit_id,
                kind=unit.kind,
                rig=unit.rig,
                status=unit.status,
                headline=unit.headline[:WORD_LIMIT],
                created_at=unit.created_at,
            )
            for unit in units
        ]
    )


@tool("Read a report", read_only=True)
def get_report(
    ctx: Context[App],
    report_id: ReportId,
    concurrency: Annotated[int | None, Field(description="List the cells of this concurrency.")] = None,
    shape: Annotated[str | None, Field(description="List the cells of this shape, e.g. '512/128'.")] = None,
    prompt: Annotated[str | None, Field(description="List the cells of this prompt.")] = None,
    all_cells: Annotated[bool, Field(description="List the first 16 cells of all.")] = False,
) -> ReportSummary:
    """Read a report in short: totals, best and worst cell, warnings, failures; of a running job what there is."""
    unit = app_of(ctx).state.unit(report_id)
    report = load_report(unit)
    chosen: list[Cell] = []
    if all_cells or concurrency is not None or shape is not None or prompt is not None:
        lengths = parse_shape(shape) if shape else None
        chosen = [
            cell
            for cell in report.cells
            if (concurrency is None or cell.concurrency == concurrency)
            and (lengths is None or (cell.input_len, cell.output_len) == (lengths.input_len, lengths.output_len))
            and (prompt is None or cell.prompt == prompt)
        ]
    path = Path(unit.folder) / "report.json"
    summary = summarise(report, chosen, path)
    while len(summary.model_dump_json()) > SIZE_LIMIT and summary.cells:
        summary = summary.model_copy(update={"cells": summary.cells[: len(summary.cells) // 2]})
    return summary


@tool("Render a report", idempotent=True)
def render_report(
    ctx: Context[App],
    report_id: ReportId,
    format: Annotated[
        Literal["markdown", "csv", "html", "png"],
        Field(description="markdown to read, csv for programs, html: a page to share, png: its charts as images."),
    ] = "markdown",
    against: Annotated[
        str | None, Field(description="A second report of the same workload, drawn beside it: html and png.")
    ] = None,
) -> Annotated[CallToolResult, Rendered]:
    """Write a report as markdown, csv, an html page or png charts beside its data; returns the paths.

    html and png take seconds: then wait_for_job, and the same call again gives the result, charts as images.
    """
    app = app_of(ctx)
    units = [app.state.unit(report_id)]
    if against is not None:
        if format not in DRAWN:
            raise UsageError(f"against is for html and png, not for {format}.")
        units.append(app.state.unit(against))
    args = {"report_id": report_id, "format": format, "against": against}
    drawn = drawn_before(app.state, args, units) if format in DRAWN else None
    view = job_view(drawn) if drawn else finished_or_raise(app, "render", None, args)
    rendered = _rendered(view, format)
    content: list[ContentBlock] = [TextContent(type="text", text=rendered.model_dump_json(indent=2))]
    if format == "png":
        content += [Image(path=path).to_image_content() for path in rendered.paths]
    return CallToolResult(content=content, structured_content=rendered.model_dump(mode="json"))


def _rendered(view: JobView, format: str) -> Rendered:
    paths = view.result.get("paths", []) if view.result else []
    written = [str(path) for path in paths] if isinstance(paths, list) else []
    preview = ""
    if written and format not in DRAWN:
        with open(written[0], encoding="utf-8") as file:
            preview = file.read(PREVIEW_LIMIT)
    next_step = view.next_step
    if view.status == "done":
        next_step = "open the page in a browser" if format == "html" else ""
        if not written:
            next_step = "no cell has a figure, so there is nothing to draw: get_report says why"
    return Rendered(job=view, path=written[0] if written else None, paths=written, preview=preview, next_step=next_step)


def summarise(report: Report, chosen: list[Cell], path: Path) -> ReportSummary:
    """Fit a report into a few kilobytes, whatever its size."""
    measured = [cell for cell in report.cells if cell.total_output_tok_s is not None]
    by_status: dict[str, int] = {}
    for cell in report.cells:
        by_status[cell.status] = by_status.get(cell.status, 0) + 1

    def speed_of(cell: Cell) -> float:
        return cell.total_output_tok_s or 0.0

    arm = report.arm
    drafter = arm.drafter
    return ReportSummary(
        report_id=report.report_id,
        kind=report.kind,
        status=report.status,
        reason=_cut(report.reason),
        started_at=report.started_at,
        finished_at=report.finished_at,
        arm=ArmView(
            rig=arm.rig,
            accelerator=arm.accelerator,
            engine=arm.engine,
            engine_version=arm.engine_version,
            checkpoint=arm.checkpoint.name if arm.checkpoint else None,
            drafter=(drafter.model.name if drafter.model else drafter.method) if drafter else None,
            draft_tokens=arm.draft_tokens,
        ),
        workload_hash=report.workload_hash,
        requests_ok=sum(cell.requests.ok for cell in report.cells),
        requests_failed=sum(cell.requests.failed for cell in report.cells),
        cells_by_status=by_status,
        best_cell=_row(max(measured, key=speed_of)) if measured else None,
        worst_cell=_row(min(measured, key=speed_of)) if measured else None,
        speed=SpeedView(
            geomean_decode_tok_s=_round(report.speed.geomean_decode_tok_s),
            decode_tok_s={line.prompt: _round(line.decode_tok_s) for line in report.speed.prompts[:12]},
            acceptance=report.speed.acceptance,
        )
        if report.speed
        else None,
        eval=report.eval,
        client_verdict=report.client.verdict if report.client else None,
        warnings=[_cut(warning) or "" for warning in report.warnings[:8]],
        failures=[f"{item.where}: {_cut(item.reason)} ({item.count} requests)" for item in report.failures[:5]],
        cells=[_row(cell) for cell in chosen[:CELL_LIMIT]],
        cells_matched=len(chosen),
        path=str(path),
        resource=f"rigbench://reports/{report.report_id}",
        next_step=f"render_report(report_id={report.report_id!r})",
    )


def _row(cell: Cell) -> CellRow:
    return CellRow(
        cell=str(key_of(cell)),
        status=cell.status,
        reason=_cut(cell.reason),
        ok=cell.requests.ok,
        failed=cell.requests.failed,
        ttft_ms_p50=_round(cell.ttft_ms.p50) if cell.ttft_ms else None,
        ttft_ms_p99=_round(cell.ttft_ms.p99) if cell.ttft_ms else None,
        tpot_ms_p50=_round(cell.tpot_ms.p50) if cell.tpot_ms else None,
        decode_tok_s=_round(cell.decode_tok_s),
        total_output_tok_s=_round(cell.total_output_tok_s),
        right=cell.scores.correct if cell.scores else None,
    )


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _cut(words: str | None) -> str | None:
    return words if words is None or len(words) <= WORD_LIMIT else f"{words[:WORD_LIMIT]} ..."
