"""Reading the reports of units, finished or still running, and writing them in other forms."""

from __future__ import annotations

from pathlib import Path

from evals.cells import key_of
from evals.render import csv, markdown
from evals.report import Cell, Report
from evals.spec import UnitSpec
from evals.summary import build_report
from mcp_server.rows import Unit
from rigs.errors import RigsError, UsageError

FORMATS = {"markdown": ("md", markdown.render), "csv": ("csv", csv.render)}


class ReportError(RigsError):
    """A report that is not there, or cannot be read."""


def load_report(unit: Unit) -> Report:
    """Return the unit's report; of a unit that still runs, one made of the cells recorded so far.

    Raises:
        ReportError: nothing was recorded, or the file is damaged.
    """
    folder = Path(unit.folder)
    try:
        if (folder / "report.json").exists():
            return Report.model_validate_json((folder / "report.json").read_bytes())
        spec = UnitSpec.model_validate_json((folder / "spec.json").read_bytes())
        cells = _recorded(folder / "cells.jsonl")
    except FileNotFoundError as error:
        if unit.status == "running":
            raise ReportError(
                f"The report {unit.unit_id!r} has no data yet. wait_for_job tells when it has."
            ) from error
        raise ReportError(f"The data of {unit.unit_id!r} is gone: there is no {error.filename}.") from error
    except (ValueError, OSError) as error:  # damaged JSON, no UTF-8, a folder of that name
        raise ReportError(f"The report {unit.unit_id!r} in {folder} is damaged: {str(error)[:300]}") from error
    so_far = build_report(
        spec, {key_of(cell): cell for cell in cells}, started_at=None, requests_path="requests.jsonl", provenance={}
    )
    words = f"{len(cells)} of {len(so_far.cells)} cells so far"
    return so_far.model_copy(update={"status": "running", "reason": words, "finished_at": None})


def _recorded(path: Path) -> list[Cell]:
    """Return the whole lines of a file that may still grow."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [Cell.model_validate_json(line) for line in lines]


def render(report: Report, form: str, unit: Unit) -> Path:
    """Write the report in this form beside its data.

    Raises:
        UsageError: no such form; the message lists them.
    """
    if form not in FORMATS:
        raise UsageError(f"Unknown format {form!r}. Available: {', '.join(sorted(FORMATS))}.")
    ending, write = FORMATS[form]
    path = Path(unit.folder) / f"report.{ending}"
    temporary = path.with_suffix(".part")
    temporary.write_text(write(report), encoding="utf-8")
    temporary.replace(path)
    return path
