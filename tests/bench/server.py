"""The MCP server: its start, the size of its list, and its answers beside a running sweep."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from rigs.local import LocalConnection
from tests import tiny_gguf
from tests.bench.figure import Figure, percentile

ROOT = Path(__file__).parents[2]
WHEELHOUSE = ROOT / ".wheelhouse"


def server_start() -> Iterator[Figure]:
    cpu: list[float] = []
    wall: list[float] = []
    listed = ""
    for _ in range(5):
        with tempfile.TemporaryDirectory(prefix="rigbench-bench-") as home:
            began = time.monotonic()
            listed, cpu_s = list_tools_once({**os.environ, "RIGBENCH_HOME": home})
            wall.append(time.monotonic() - began)
            cpu.append(cpu_s)
    tools = json.loads(listed)["result"]["tools"]
    yield Figure(
        name="server-start",
        what="server: spawn to tools/list, CPU with children",
        value=statistics.median(cpu),
        unit="s",
        target=1.8,
        best_peer="fastmcp 2.6",
        note=f"median of 5, {min(cpu):.2f} to {max(cpu):.2f}; {statistics.median(wall):.2f} s by the clock",
    )
    sizes = [len(json.dumps(tool, separators=(",", ":"), ensure_ascii=False).encode()) for tool in tools]
    yield Figure(
        name="server-start",
        what="tools/list, bytes a tool",
        value=sum(sizes) / len(sizes),
        unit="B",
        target=1700,
        note=f"{len(tools)} tools, {sum(sizes):,} B in all, the largest {max(sizes):,} B",
    )


def list_tools_once(env: dict[str, str]) -> tuple[str, float]:
    """The answer to tools/list of a server just started, and its CPU seconds until then."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "0"}}
    words: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    server = subprocess.Popen(
        [sys.executable, "-m", "mcp_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=env
    )
    assert server.stdin
    assert server.stdout
    with server.stdin, server.stdout:
        answers: list[bytes] = []
        for word in words:
            server.stdin.write(json.dumps(word).encode() + b"\n")
            server.stdin.flush()
            if "id" in word:
                answers.append(server.stdout.readline())
        # Now, so that its end is not counted; wait4 gives the CPU of this one child and of those it waited for.
        server.kill()
        _, status, usage = os.wait4(server.pid, 0)
        server.returncode = os.waitstatus_to_exitcode(status)
    return answers[-1].decode(), usage.ru_utime + usage.ru_stime


READS: dict[str, dict[str, Any]] = {
    "list_rigs": {},
    "list_engines": {"rig": "local"},
    "list_checkpoints": {},
    "list_jobs": {},
    "read_job_log": {"job_id": "{sweep}"},
    "list_reports": {},
    "get_report": {"report_id": "{sweep}", "all_cells": True},
}
"""Every read tool but wait_for_job, whose business is to wait."""


def tool_latency() -> Iterator[Figure]:
    if not (WHEELHOUSE / ".filled").exists():
        note = "there is no .wheelhouse; `make bench` fills it"
        yield Figure(name="tool-latency", what="tools while a sweep runs", note=note)
        return
    home = Path(tempfile.mkdtemp(prefix="rigbench-bench-"))
    env = {
        **os.environ,
        "RIGBENCH_HOME": str(home / "state"),
        "RIGBENCH_RIG_HOME": str(home / "rig"),
        "RIGBENCH_WHEELHOUSE": str(WHEELHOUSE),
    }
    try:
        reads, starts = asyncio.run(_tools_beside_a_sweep(tiny_gguf.write(home / "tiny.gguf"), env))
    finally:
        stop = [sys.executable, "-m", "mcp_server", "worker", "stop"]
        subprocess.run(stop, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(home, ignore_errors=True)
    for name, times in reads.items():
        figure = Figure(name="tool-latency", what=f"{name} while a sweep runs, worst", unit="ms", target=1000)
        if times:
            note = f"n={len(times)}, p50 {statistics.median(times) * 1e3:.1f} ms"
            yield replace(figure, value=max(times) * 1e3, note=note)
        else:
            yield replace(figure, note="never called: READS lacks it, or the sweep was over too soon")
    yield Figure(
        name="tool-latency",
        what="a tool that starts a job, worst",
        value=max(starts.values()) * 1e3,
        unit="ms",
        target=1000,
        best_peer="minutes",
        note=", ".join(f"{name} {took * 1e3:.0f}" for name, took in starts.items()),
    )


async def _tools_beside_a_sweep(model: Path, env: dict[str, str]) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds per call of each read tool while a sweep runs here on the tiny model, and of each start of a job."""
    reads: dict[str, list[float]] = {name: [] for name in READS}
    starts: dict[str, float] = {}
    server = StdioServerParameters(command=sys.executable, args=["-m", "mcp_server"], env=env, cwd=str(ROOT))
    async with Client(server) as client:
        for tool in (await client.list_tools()).tools:
            if tool.annotations and tool.annotations.read_only_hint and tool.name != "wait_for_job":
                reads.setdefault(tool.name, [])

        async def call(tool: str, **arguments: Any) -> tuple[dict[str, Any], float]:
            began = time.monotonic()
            result = await client.call_tool(tool, arguments)
            took = time.monotonic() - began
            assert isinstance(result, CallToolResult)
            if result.is_error or result.structured_content is None:
                raise RuntimeError(f"{tool}: {result.content}")
            return result.structured_content, took

        async def do(tool: str, **arguments: Any) -> dict[str, Any]:
            job, starts[tool] = await call(tool, **arguments)
            while job["status"] in ("queued", "running"):
                job, _ = await call("wait_for_job", job_id=job["job_id"], timeout_s=20)
            if job["status"] != "done":
                raise RuntimeError(f"{tool}: {job['error']}")
            return job

        await do("attach_rig")
        await do("serve_engine", rig="local", checkpoint=str(model), context_tokens=512, parallel=8, threads=1)
        try:
            sweep, starts["run_sweep"] = await call(
                "run_sweep", rig="local", concurrency=[8], shapes=["64/128"], repeats=40
            )
            while (await call("list_jobs", unfinished=True))[0]["jobs"] and not sweep["done"]:
                sweep, _ = await call("wait_for_job", job_id=sweep["job_id"], timeout_s=0.1)
            deadline = time.monotonic() + 10
            while sweep["status"] == "running" and time.monotonic() < deadline:
                for name, arguments in READS.items():
                    given = {key: sweep["job_id"] if value == "{sweep}" else value for key, value in arguments.items()}
                    reads[name].append((await call(name, **given))[1])
                sweep, _ = await call("wait_for_job", job_id=sweep["job_id"], timeout_s=0.0)
            await call("cancel_job", job_id=sweep["job_id"])
        finally:
            await do("stop_engine", rig="local")
    return reads, starts


def local_exec() -> Iterator[Figure]:
    async def run() -> list[float]:
        connection = LocalConnection()
        times: list[float] = []
        for _ in range(200):
            began = time.monotonic()
            (await connection.run(["true"])).check()
            times.append((time.monotonic() - began) * 1e3)
        return times

    times = asyncio.run(run())
    yield Figure(
        name="local-exec",
        what="a command on a local rig, p50",
        value=statistics.median(times),
        unit="ms",
        note=f"n={len(times)}, p99 {percentile(times, 0.99):.1f} ms",
    )
