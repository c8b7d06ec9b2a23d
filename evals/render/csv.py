"""A report as CSV: one row a cell, units in the header, empty where there is no value."""

from __future__ import annotations

import csv
import io

from evals.report import Cell, Distribution, Report

DISTRIBUTIONS = ("ttft_ms", "itl_ms", "icl_ms", "tpot_ms", "e2e_ms")
FIGURES = ("mean", "p50", "p90", "p99", "n")
SCORES = ("n", "correct", "not_answered", "cut_off", "lm_eval_strict", "lm_eval_flexible")
COLUMNS = (
    "report_id",
    "kind",
    "prompt",
    "input_len_tokens",
    "output_len_tokens",
    "concurrency",
    "repeat",
    "status",
    "reason",
    "requests_ok",
    "requests_failed",
    *(f"{name}_{figure}" for name in DISTRIBUTIONS for figure in FIGURES),
    "decode_tok_s",
    "e2e_tok_s",
    "total_output_tok_s",
    "input_tokens_got",
    "output_tokens_got",
    "cached_tokens",
    "drafted_tokens",
    "accepted_tokens",
    *(f"questions_{name}" for name in SCORES),
    "client_verdict",
    "started_at",
    "finished_at",
)


def render(report: Report) -> str:
    """Total: any valid report gives a table, if only its header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(report, cell) for cell in report.cells)
    return text.getvalue()


def _row(report: Report, cell: Cell) -> dict[str, object]:
    row: dict[str, object] = {
        "report_id": _text(report.report_id),
        "kind": report.kind,
        "prompt": cell.prompt,
        "input_len_tokens": cell.input_len,
        "output_len_tokens": cell.output_len,
        "concurrency": cell.concurrency,
        "repeat": cell.repeat,
        "status": cell.status,
        "reason": _text(cell.reason),
        "requests_ok": cell.requests.ok,
        "requests_failed": cell.requests.failed,
        "decode_tok_s": cell.decode_tok_s,
        "e2e_tok_s": cell.e2e_tok_s,
        "total_output_tok_s": cell.total_output_tok_s,
        "input_tokens_got": cell.input_tokens.got,
        "output_tokens_got": cell.output_tokens.got,
        "cached_tokens": cell.cached_tokens,
        "drafted_tokens": cell.drafted,
        "accepted_tokens": cell.accepted,
        "client_verdict": cell.client.verdict if cell.client else None,
        "started_at": cell.started_at,
        "finished_at": cell.finished_at,
    }
    for name in DISTRIBUTIONS:
        distribution: Distribution | None = getattr(cell, name)
        if distribution is not None:
            row |= {f"{name}_{figure}": getattr(distribution, figure) for figure in FIGURES}
    if cell.scores is not None:
        row |= {f"questions_{name}": getattr(cell.scores, name) for name in SCORES}
    return row


def _text(words: str | None) -> str | None:
    # A cell that begins so is a formula to a spreadsheet; these words come from a server.
    return f"'{words}" if words and words[0] in "=+-@\t\r" else words
