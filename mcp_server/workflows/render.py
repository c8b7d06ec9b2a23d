"""Writing a report in a form for people or for other programs."""

from __future__ import annotations

from mcp_server.drawing import DRAWN, draw
from mcp_server.reports import load_report, render
from mcp_server.version import VERSION
from mcp_server.workflows.context import RunningJob


async def render_report(running: RunningJob) -> dict[str, object]:
    """Write the report beside its data; a second call writes it anew."""
    form = str(running.job.args["format"])
    unit = running.state.unit(str(running.job.args["report_id"]))
    other = running.argument("against")
    if form in DRAWN:
        against = running.state.unit(other) if other is not None else None
        paths = await draw(form, unit, against, running.config.home / "cache" / "matplotlib")
    else:
        paths = [render(load_report(unit), form, unit)]
    running.say(f"written: {', '.join(map(str, paths)) or 'nothing, for no cell has a figure'}")
    written = [str(path) for path in paths]
    first = written[0] if written else None
    return {"report_id": unit.unit_id, "format": form, "path": first, "paths": written, "version": VERSION}
