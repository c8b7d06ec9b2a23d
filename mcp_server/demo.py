"""`rigbench demo`: the main job, end to end, as an MCP client does it over stdio.

It attaches this machine, installs llama.cpp, serves a toy model of 135M parameters, measures speed without and with a
drafter and a small load sweep, scores six word problems, and lets everything go. The workload is a reduced one: its
figures show that the path works, not how fast a machine is.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from mcp_server import daemon
from mcp_server.config import Config, load
from rigs.errors import RigsError

REPORTS = ("speed", "speed_with_drafter", "sweep", "eval")
CHECKPOINT = "smollm2-135m-instruct-q4_1"
NOTE = (
    "A reduced workload on a toy model of 135M parameters: it shows that the path works, not how fast this machine is."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    prompts: tuple[str, ...]
    max_tokens: int
    repeats: int
    concurrency: tuple[int, ...]
    shape: str
    reply_tokens: int
    """Of the word problems."""
    draft_tokens: int = 4


FULL = Plan(
    prompts=("code", "summary"), max_tokens=64, repeats=2, concurrency=(1, 2, 4), shape="64/32", reply_tokens=64
)
QUICK = Plan(prompts=("summary",), max_tokens=32, repeats=1, concurrency=(1, 2), shape="32/16", reply_tokens=16)


class DemoError(RigsError):
    """A step of the demo failed; with what the tool said."""


@dataclass
class Session:
    """One client and its server, with a bar for what is going on."""

    client: Client
    console: Console
    progress: Progress
    bar: TaskID
    results: dict[str, Any] = field(default_factory=dict[str, Any])

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        if result.is_error or result.structured_content is None:
            words = "; ".join(item.text for item in result.content if isinstance(item, TextContent))
            raise DemoError(f"{tool}: {words}")
        return result.structured_content

    async def do(self, words: str, tool: str, **arguments: Any) -> dict[str, Any]:
        """Start a job and wait for its end, as any client would.

        Raises:
            DemoError: it did not end well.
        """
        began = time.monotonic()
        self.progress.update(self.bar, description=words, completed=0, total=None, detail="")
        answer = await self.call(tool, **arguments)
        job = answer.get("job", answer)

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            self.progress.update(self.bar, completed=int(progress), total=total, detail=message or "")

        while job["status"] in ("queued", "running"):
            waited = await self.client.call_tool("wait_for_job", {"job_id": job["job_id"]}, progress_callback=tell)
            assert isinstance(waited, CallToolResult)
            if waited.structured_content is None:
                raise DemoError(f"wait_for_job: {waited.content}")
            job = waited.structured_content
        if job["status"] != "done":
            raise DemoError(f"{words}: {job['status']}: {job['error']}")
        self.console.print(f"[green]done[/] {words} ({time.monotonic() - began:.1f} s)", highlight=False)
        return job


def main(*, quick: bool, as_json: bool) -> int:
    """Run the demo; 0 when all of it worked."""
    began = time.monotonic()
    config = load()
    config.make_folders()
    had_worker = daemon.worker_pid(config) is not None
    console = Console(stderr=True)
    console.print(NOTE, style="yellow")
    try:
        results = asyncio.run(_run(QUICK if quick else FULL, console, config))
    finally:
        if not had_worker:
            daemon.stop_worker(config)
            daemon.wait_until_ended(config, timeout_s=15)
    results["elapsed_s"] = round(time.monotonic() - began, 1)
    if as_json:
        sys.stdout.write(json.dumps(results) + "\n")
    else:
        _show(results)
    return 0


async def _run(plan: Plan, console: Console, config: Config) -> dict[str, Any]:
    async with _session(console, config) as session:
        rig, attached = await _rig(session)
        try:
            await _measure(session, rig, plan)
        finally:
            await session.do("stop the engine", "stop_engine", rig=rig)
            if attached:
                await session.do("detach this machine", "detach_rig", rig=rig)
        return session.results


@asynccontextmanager
async def _session(console: Console, config: Config) -> AsyncGenerator[Session]:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", style="dim"),
    )
    environment = {**os.environ, "RIGBENCH_HOME": str(config.home)}
    server = StdioServerParameters(command=sys.executable, args=["-m", "mcp_server", "serve"], env=environment)
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("start the server", total=None, detail="")
        async with Client(server) as client:
            yield Session(client=client, console=console, progress=progress, bar=bar)


async def _rig(session: Session) -> tuple[str, bool]:
    """Use this machine as it is attached, else attach it; whether it was attached here."""
    for rig in (await session.call("list_rigs"))["rigs"]:
        if rig["kind"] == "local":
            if rig["served"]:
                name = rig["name"]
                raise DemoError(f"The rig {name!r} serves something. Call stop_engine(rig={name!r}) first.")
            return str(rig["name"]), False
    job = await session.do("attach this machine", "attach_rig", name="local")
    session.results["rig"] = job["result"]
    return "local", True


async def _measure(session: Session, rig: str, plan: Plan) -> None:
    served = {"rig": rig, "checkpoint": CHECKPOINT, "context_tokens": 1024, "parallel": max(plan.concurrency)}
    speed = {"rig": rig, "prompts": list(plan.prompts), "max_tokens": plan.max_tokens, "repeats": plan.repeats}
    # Equal prompts without and with the drafter, so that the ratio is of like with like.
    speed["seed"] = secrets.randbits(32)
    results = session.results
    results["note"] = NOTE
    results["checkpoint"] = CHECKPOINT

    job = await session.do("install llama.cpp, fetch the model, serve it", "serve_engine", **served)
    results["engine"] = job["result"]
    job = await session.do("speed, one request, no drafter", "run_speed", **speed)
    plain = job["job_id"]
    results["speed"] = await _report(session, job)
    job = await session.do(
        f"sweep {plan.concurrency} x {plan.shape}",
        "run_sweep",
        rig=rig,
        concurrency=list(plan.concurrency),
        shapes=[plan.shape],
        repeats=1,
    )
    results["sweep"] = await _report(session, job)
    results["sweep_page"] = await _page(session, "draw the sweep", report_id=job["job_id"])
    job = await session.do(
        "score six word problems",
        "run_eval",
        rig=rig,
        dataset="gsm8k",
        concurrency=max(plan.concurrency),
        max_tokens=plan.reply_tokens,
    )
    results["eval"] = await _report(session, job)
    await session.do("stop the engine", "stop_engine", rig=rig)

    drafted = {**served, "drafter": "ngram", "draft_tokens": plan.draft_tokens}
    await session.do(f"serve it with the n-gram drafter, {plan.draft_tokens} tokens", "serve_engine", **drafted)
    job = await session.do("speed, one request, n-gram drafter", "run_speed", **speed)
    results["speed_with_drafter"] = await _report(session, job)
    results["speed_page"] = await _page(session, "draw the speeds", report_id=job["job_id"], against=plain)


async def _report(session: Session, job: dict[str, Any]) -> dict[str, Any]:
    return await session.call("get_report", report_id=job["job_id"], all_cells=True)


async def _page(session: Session, words: str, **arguments: Any) -> str:
    """Have a report drawn as a page; its path."""
    job = await session.do(words, "render_report", format="html", **arguments)
    return str(job["result"]["path"])


def _show(results: dict[str, Any]) -> None:
    console = Console()
    engine = results["engine"]
    console.print(f"\n[bold]{results['checkpoint']}[/] on llama.cpp {engine['engine_version']}, this machine's CPU")
    console.print(_speed_table(results["speed"], results["speed_with_drafter"]))
    console.print(_sweep_table(results["sweep"]))
    score = results["eval"]["eval"]
    console.print(
        f"Word problems: {score['correct']} of {score['n']} right (95 % range {score['score_low']:.0%} to "
        f"{score['score_high']:.0%}). A model of 135M parameters scores what it scores: this shows that scoring works.",
        highlight=False,
    )
    for name in REPORTS:
        for warning in results[name]["warnings"]:
            console.print(f"{name}: {warning}", style="yellow", highlight=False, markup=False)
    console.print(f"\n{results['note']}", style="yellow")
    for name in REPORTS:
        console.print(f"{name} report: {results[name]['path']}", highlight=False, soft_wrap=True)
    for name in ("speed", "sweep"):
        console.print(f"{name} page, for a browser: {results[f'{name}_page']}", highlight=False, soft_wrap=True)
    console.print(f"Nothing is left running. {results['elapsed_s']:.0f} s in all.")


def _speed_table(plain: dict[str, Any], drafted: dict[str, Any]) -> Table:
    table = Table(title="One request, decode tok/s", title_justify="left")
    table.add_column("prompt")
    for column in ("no drafter", "n-gram drafter", "ratio"):
        table.add_column(column, justify="right")
    without, with_drafter = plain["speed"], drafted["speed"]
    for prompt, speed in without["decode_tok_s"].items():
        table.add_row(prompt, *_pair(speed, with_drafter["decode_tok_s"][prompt]))
    table.add_section()
    pair = _pair(without["geomean_decode_tok_s"], with_drafter["geomean_decode_tok_s"])
    table.add_row("geometric mean", *pair)
    kept = with_drafter["acceptance"]
    words = f"{kept['accepted']} of {kept['drafted']} drafted tokens kept" if kept else "the drafter drafted nothing"
    table.caption = words
    return table


def _pair(one: float | None, other: float | None) -> tuple[str, str, str]:
    return _figure(one), _figure(other), f"{other / one:.2f}" if one and other else "-"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _sweep_table(sweep: dict[str, Any]) -> Table:
    table = Table(title="Load", title_justify="left")
    table.add_column("cell")
    for column in ("total tok/s", "TTFT p50 ms", "TPOT p50 ms", "ok", "failed"):
        table.add_column(column, justify="right")
    for cell in sweep["cells"]:
        figures = (cell["total_output_tok_s"], cell["ttft_ms_p50"], cell["tpot_ms_p50"])
        table.add_row(cell["cell"], *map(_figure, figures), str(cell["ok"]), str(cell["failed"]))
    return table
