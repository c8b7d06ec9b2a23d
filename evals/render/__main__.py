"""`python -m evals.render REPORT.json [--against OTHER.json] [--html FILE] [--png FOLDER]`: the page and its charts.

A process of its own, because the drawing library is large: neither the server nor the worker loads it. The path of
each file written goes to stdout, one a line. Exit codes: 0 written; 2 a report that cannot be read or compared;
4 nothing can be written there.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from evals.errors import EvalError
from evals.report import Report

OK, UNUSABLE, UNWRITTEN = 0, 2, 4


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.html is None and options.png is None:
        return _complain("Give --html FILE, --png FOLDER or both.", UNUSABLE)
    try:
        report = read(options.report)
        against = read(options.against) if options.against is not None else None
        files = make(report, against, html=options.html, png=options.png)
    except EvalError as error:
        return _complain(str(error), UNUSABLE)
    try:
        for path, content in files:
            _write(path, content)
            sys.stdout.write(f"{path}\n")
    except OSError as error:
        return _complain(f"Cannot write {error.filename}: {error.strerror}.", UNWRITTEN)
    return OK


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m evals.render", description="Draw a report.", allow_abbrev=False)
    add_arguments(made)
    return made


def add_arguments(to: argparse.ArgumentParser) -> None:
    to.add_argument("report", type=Path, metavar="REPORT.json")
    to.add_argument("--against", type=Path, metavar="OTHER.json", help="a report of the same workload, beside it")
    to.add_argument("--html", type=Path, metavar="FILE", help="write the page here")
    to.add_argument("--png", type=Path, metavar="FOLDER", help="write the charts here")


def read(path: Path) -> Report:
    """Raises: EvalError: no such file, or no report."""
    try:
        return Report.model_validate_json(path.read_bytes())
    except OSError as error:
        raise EvalError(f"Cannot read the report {path}: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise EvalError(f"{path} is no report that this version can read: {where}: {first['msg']}.") from error


def make(report: Report, against: Report | None, *, html: Path | None, png: Path | None) -> list[tuple[Path, bytes]]:
    """Draw what was asked for.

    Raises:
        IncomparableReportsError: the two reports are of unlike work.
    """
    from evals.render.canvas import as_png, as_svg
    from evals.render.figures import charts
    from evals.render.page import Picture, check_alike, render

    if against is not None:
        check_alike(report, against)
    drawings = charts([report] if against is None else [report, against])
    files: list[tuple[Path, bytes]] = []
    if html is not None:
        pictures = [Picture(title=chart.title, note=chart.note, svg=as_svg(chart)) for chart in drawings]
        files.append((html, render(report, pictures, against).encode("utf-8", "replace")))
    if png is not None:
        files += [(png / f"{chart.name}.png", as_png(chart)) for chart in drawings]
    return files


def _write(path: Path, content: bytes) -> None:
    """A reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _complain(words: str, code: int) -> int:
    sys.stderr.write(f"{words}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
