"""Large things a client may read by address instead of through a tool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError

from mcp_server.app import App, app_of
from rigs.errors import RigsError


def report(report_id: str, ctx: Context[App]) -> str:
    """The whole report as JSON."""
    return _text(ctx, report_id, "report.json")


def engine_log(report_id: str, ctx: Context[App]) -> str:
    """What the engine logged up to the end of this unit."""
    return _text(ctx, report_id, "engine.log")


def _text(ctx: Context[App], report_id: str, name: str) -> str:
    try:
        folder = Path(app_of(ctx).state.unit(report_id).folder)
        return (folder / name).read_text(encoding="utf-8", errors="replace")
    except (RigsError, FileNotFoundError) as error:
        raise ResourceNotFoundError(f"There is no {name} of {report_id}: {error}") from error


RESOURCES: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    ("rigbench://reports/{report_id}", "Report", "application/json", report),
    ("rigbench://reports/{report_id}/engine-log", "Engine log", "text/plain", engine_log),
)
