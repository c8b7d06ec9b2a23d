"""`python -m evals RUN_DIR`: run the unit in RUN_DIR/spec.json. `python -m evals schema`: print the report's schema.

Exit codes: 0 a report was written (its status tells how the unit went); 2 the unit cannot be run as it is; 3 cancelled
by SIGTERM or SIGINT, with a report of what was finished; 4 the disk is full, nothing recorded is damaged.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from evals.cells import key_of
from evals.errors import EvalError
from evals.journal import SPEC, read_spec
from evals.load import loop_factory
from evals.report import Cell, report_schema
from evals.runner import run_unit
from rigs.errors import RigFullError

OK, UNUSABLE, CANCELLED, DISK_FULL = 0, 2, 3, 4
USAGE = "usage: python -m evals RUN_DIR | schema"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        return _complain(USAGE, UNUSABLE)
    if arguments[0] == "schema":
        sys.stdout.write(report_schema())
        return OK
    run_dir = Path(arguments[0])
    try:
        spec = read_spec(run_dir / SPEC)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            report = runner.run(_until_signalled(run_unit(spec, run_dir, tell)))
    except asyncio.CancelledError:
        return _complain("cancelled; report.json holds the finished cells", CANCELLED)
    except RigFullError as error:
        return _complain(str(error), DISK_FULL)
    except EvalError as error:
        return _complain(str(error), UNUSABLE)
    return _complain(f"{report.status}: {report.reason}", OK) if report.reason else OK


def tell(cell: Cell, number: int, total: int) -> None:
    """One line a cell, for people: `cell 3/21 c=4 512/128 #1: 118.3 tok/s, ttft p50 43 ms`."""
    sys.stderr.write(f"cell {number}/{total} {key_of(cell)}: {describe(cell)}\n")
    sys.stderr.flush()


def describe(cell: Cell) -> str:
    if cell.status != "ok":
        return f"{cell.status}: {cell.reason}"
    speed = "- tok/s" if cell.total_output_tok_s is None else f"{cell.total_output_tok_s:.1f} tok/s"
    if cell.scores is not None:
        speed = f"{cell.scores.correct} of {cell.scores.n} right, {speed}"
    first = "-" if cell.ttft_ms is None else f"{cell.ttft_ms.p50:.0f} ms"
    return f"{speed}, ttft p50 {first}"


async def _until_signalled(work: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    return await task


def _complain(words: str, code: int) -> int:
    sys.stderr.write(f"{words}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
