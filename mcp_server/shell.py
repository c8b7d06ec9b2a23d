"""What the tools show, for people without a client: `rigbench jobs`, `reports`, `report ID`, `clean`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evals.render import markdown
from mcp_server.config import Config, load
from mcp_server.reports import load_report
from mcp_server.state import State
from mcp_server.views import job_view
from rigs.errors import UsageError


def jobs(options: argparse.Namespace) -> int:
    """List the latest jobs."""
    with _state() as (_, state):
        found = state.jobs(rig=options.rig, unfinished=options.unfinished, limit=options.limit)
    views = [job_view(job) for job in found]
    if options.json:
        return _print_json([view.model_dump(mode="json") for view in views])
    table = Table("job", "rig", "status", "done", "what", box=None, header_style="bold")
    for view in views:
        done = f"{view.done}/{view.total}" if view.total else ""
        table.add_row(view.job_id, view.rig or "", view.status, done, escape(view.error or view.detail))
    Console().print(table if views else "no jobs yet")
    return 0


def reports(options: argparse.Namespace) -> int:
    """List the latest reports with their main figure."""
    with _state() as (_, state):
        units = state.units(limit=options.limit)
    if options.json:
        return _print_json([unit.model_dump(mode="json") for unit in units])
    table = Table("report", "rig", "status", "main figure", box=None, header_style="bold")
    for unit in units:
        table.add_row(unit.unit_id, unit.rig, unit.status, escape(unit.headline))
    Console().print(table if units else "no reports yet")
    return 0


def report(options: argparse.Namespace) -> int:
    """Print one report: markdown on stdout, or the whole JSON."""
    with _state() as (_, state):
        found = load_report(state.unit(options.report_id))
    sys.stdout.write(found.model_dump_json(indent=2) + "\n" if options.json else markdown.render(found))
    return 0


def clean(options: argparse.Namespace) -> int:
    """Show what takes space, and free it where asked.

    Raises:
        UsageError: a job runs, whose files these may be.
    """
    with _state() as (config, state):
        rigs = {f"rig {rig.name}": Path(rig.rig_home) for rig in state.rigs() if rig.address is None}
        parts = {"runs": config.runs, **rigs}
        unfinished = state.jobs(unfinished=True)
    sizes = {
        name: {folder.name: _size_mb(folder) for folder in sorted(path.iterdir()) if folder.is_dir()}
        for name, path in parts.items()
        if path.is_dir()
    }
    removed: list[str] = []
    if options.models or options.engines:
        if unfinished:
            raise UsageError(f"{unfinished[0].job_id} is {unfinished[0].status}. Wait for it or cancel it, then clean.")
        for name, path in parts.items():
            if not name.startswith("rig "):
                continue
            for wanted, folder in ((options.models, path / "models"), (options.engines, path / "engines")):
                if wanted and folder.is_dir():
                    shutil.rmtree(folder)
                    removed.append(str(folder))
    if options.json:
        return _print_json({"sizes_mb": sizes, "removed": removed})
    console = Console()
    for name, folders in sizes.items():
        console.print(f"[bold]{name}[/] {parts[name]}", highlight=False, soft_wrap=True)
        shown = folders if name != "runs" else {f"{len(folders)} jobs": round(sum(folders.values()), 1)}
        for folder, size_mb in shown.items():
            console.print(f"  {size_mb:10,.1f} MB  {escape(folder)}", highlight=False)
    for path in removed:
        console.print(f"removed {path}", highlight=False, soft_wrap=True)
    if not removed:
        console.print("Free some with --models (fetched weights) or --engines (installed engines); both come back.")
    return 0


@contextmanager
def _state() -> Generator[tuple[Config, State]]:
    config = load()
    if not config.database.exists():
        raise UsageError(f"There is no state in {config.home} yet. An MCP client or `rigbench demo` makes one.")
    state = State(config.database)
    try:
        yield config, state
    finally:
        state.close()


def _size_mb(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            total += path.stat().st_size
    return round(total / 1e6, 1)


def _print_json(value: object) -> int:
    sys.stdout.write(json.dumps(value) + "\n")
    return 0
