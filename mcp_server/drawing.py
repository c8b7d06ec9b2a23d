"""Pages and charts of reports, drawn in a child process: the drawing library never enters the worker or the server."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from mcp_server.reports import ReportError, load_report
from mcp_server.rows import Job, JobStatus, Unit
from mcp_server.state import State
from mcp_server.version import VERSION
from rigs.local import LocalConnection

DRAWN = ("html", "png")
TIMEOUT_S = 300.0
LOOKED_THROUGH = 200
"""Jobs back; what was drawn before those is drawn again."""
IN_WORDS = (2, 4)
"""Exit codes of `evals.render` whose reason is on stderr; any other is a fault of ours."""


async def draw(form: str, unit: Unit, against: Unit | None, cache: Path) -> list[Path]:
    """Draw the report of `unit` beside its data; a second call draws it anew. Returns what was written.

    Raises:
        ReportError: no data yet, or two reports that cannot be compared, in words.
    """
    name = f"-against-{against.unit_id}" if against else ""
    folder = Path(unit.folder)
    target = folder / (f"report{name}.html" if form == "html" else f"figures{name}")
    argv = [sys.executable, "-m", "evals.render", str(_file_of(unit)), f"--{form}", str(target)]
    if against is not None:
        argv += ["--against", str(_file_of(against))]
    # The library indexes the fonts of the machine once; a home that cannot be written would cost that each time.
    result = await LocalConnection().run(argv, env={"MPLCONFIGDIR": str(cache)}, timeout_s=TIMEOUT_S)
    words = result.stderr.decode(errors="replace").strip()
    if result.exit_code in IN_WORDS:
        raise ReportError(words)
    if result.exit_code != 0:
        raise RuntimeError(f"evals.render ended with {result.exit_code}: {words[-2000:]}")
    return [Path(line) for line in result.stdout.decode().splitlines()]


def drawn_before(state: State, args: Mapping[str, object], units: Sequence[Unit]) -> Job | None:
    """The job that drew just this from the reports as they are now; None where one has to be started."""
    for job in state.jobs(limit=LOOKED_THROUGH):
        if job.kind != "render" or job.status is not JobStatus.DONE or job.args != args or job.result is None:
            continue
        paths = job.result.get("paths")
        if not isinstance(paths, list) or job.started_at is None or job.result.get("version") != VERSION:
            continue
        began_s = datetime.fromisoformat(job.started_at).timestamp()
        reports = [Path(unit.folder) / "report.json" for unit in units]
        fresh = all(report.exists() and report.stat().st_mtime < began_s for report in reports)
        if fresh and all(Path(str(path)).exists() for path in paths):
            return job
    return None


def _file_of(unit: Unit) -> Path:
    """The report as a file; of a unit that still runs, one made of the cells so far."""
    path = Path(unit.folder) / "report.json"
    if path.exists():
        return path
    so_far = path.with_name("report.so-far.json")
    so_far.write_text(load_report(unit).model_dump_json(), encoding="utf-8")
    return so_far
