"""Writing a report in a form for people or for other programs."""

from __future__ import annotations

from mcp_server.reports import load_report, render
from mcp_server.workflows.context import RunningJob


async def render_report(running: RunningJob) -> dict[str, object]:
    """Write the report beside its data; a second call writes it anew."""
    unit = running.state.unit(str(running.job.args["report_id"]))
    path = render(load_report(unit), str(running.job.args["format"]), unit)
    running.say(f"written: {path}")
    return {"report_id": unit.unit_id, "format": str(running.job.args["format"]), "path": str(path)}
