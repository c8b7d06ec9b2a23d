"""Death at any moment: sweeps during which somebody is killed twenty times, and nothing is lost or left."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_server import daemon
from mcp_server.config import Config
from tests.mcp_server.conftest import Session, processes, rig_processes, session

pytestmark = pytest.mark.timeout(300)

KILLS = 20


@dataclass(frozen=True)
class Sweep:
    """Long enough for twenty deaths of its kind, and not much longer."""

    cells: int
    tokens: int

    def arguments(self) -> dict[str, Any]:
        return {"rig": "local", "concurrency": [1, 2], "shapes": [f"64/{self.tokens}"], "repeats": self.cells // 2}


FOR_SERVERS = Sweep(cells=60, tokens=1400)
FOR_WORKERS = Sweep(cells=70, tokens=1400)
FOR_MEASURING = Sweep(cells=110, tokens=700)


async def sweep(
    config: Config, rig_home: Path, model: Path, wanted: Sweep, kill: Callable[[dict[str, Any]], Awaitable[bool]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a sweep, call `kill` until it has killed often enough, and return the job and its report."""
    moments = random.Random(7)
    async with session(config) as s:
        await s.do("attach_rig")
        await s.serve(model, context_tokens=2048)
        job = await s.call("run_sweep", **wanted.arguments())
        kills = 0
        while job["status"] in ("queued", "running"):
            if kills < KILLS and job["status"] == "running" and await kill(job):
                kills += 1
            job = await s.call("wait_for_job", job_id=job["job_id"], timeout_s=moments.uniform(0.2, 1.0))
        assert job["status"] == "done", job["error"]
        assert kills == KILLS, f"the sweep was over after {kills} kills: make it longer"
        report = await s.call("get_report", report_id=job["job_id"])
        assert len((await s.call("list_reports"))["reports"]) == 1
        await s.do("stop_engine", rig="local")
        await s.do("detach_rig", rig="local")
    assert rig_processes(rig_home) == {}
    return job, report


def check_whole(config: Config, wanted: Sweep, job: dict[str, Any], report: dict[str, Any]) -> None:
    folder = config.runs / job["job_id"] / job["job_id"]
    cells = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    keys = {(cell["concurrency"], cell["repeat"]) for cell in cells}
    assert len(cells) == len(keys) == wanted.cells
    requests = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    assert len(requests) == len({request["id"] for request in requests}) == wanted.cells // 2 * 3
    assert (report["status"], report["requests_failed"], report["cells_by_status"]) == ("ok", 0, {"ok": wanted.cells})


async def test_twenty_servers_die_while_a_client_waits(config: Config, rig_home: Path, tiny_model: Path) -> None:
    async def kill(job: dict[str, Any]) -> bool:
        argv = [sys.executable, "-m", "mcp_server"]
        server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert server.stdin
        assert server.stdout
        client = {"name": "t", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        call = {"name": "wait_for_job", "arguments": {"job_id": job["job_id"], "timeout_s": 30}}
        for message in (
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": call},
        ):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        server.stdin.flush()
        await asyncio.to_thread(server.stdout.readline)
        await asyncio.sleep(0.1)
        server.kill()
        server.wait()
        server.stdin.close()
        server.stdout.close()
        return True

    check_whole(config, FOR_SERVERS, *await sweep(config, rig_home, tiny_model, FOR_SERVERS, kill))


async def test_twenty_workers_die(config: Config, rig_home: Path, tiny_model: Path) -> None:
    async def kill(_: dict[str, Any]) -> bool:
        pid = daemon.worker_pid(config)
        if not pid:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    check_whole(config, FOR_WORKERS, *await sweep(config, rig_home, tiny_model, FOR_WORKERS, kill))


async def test_twenty_measuring_processes_die(config: Config, rig_home: Path, tiny_model: Path) -> None:
    done = 0

    async def kill(job: dict[str, Any]) -> bool:
        nonlocal done
        # One that has recorded something since the last: a process that never gets to a cell is given up on.
        if (job["done"] or 0) <= done:
            return False
        killed = False
        for pid, line in processes().items():
            if "-m evals" in line and str(rig_home) in line:
                os.kill(pid, signal.SIGKILL)
                killed = True
        done = job["done"] if killed else done
        return killed

    check_whole(config, FOR_MEASURING, *await sweep(config, rig_home, tiny_model, FOR_MEASURING, kill))


async def test_an_engine_that_dies_ends_the_sweep_with_every_cell_accounted_for(
    config: Config, rig_home: Path, tiny_model: Path
) -> None:
    async with session(config) as s:
        await s.do("attach_rig")
        await s.serve(tiny_model, context_tokens=2048)
        job = await s.call("run_sweep", **FOR_SERVERS.arguments())
        while (job["done"] or 0) < 3:
            job = await s.call("wait_for_job", job_id=job["job_id"], timeout_s=0.3)
        for pid, line in processes().items():
            if "server.py" in line and str(rig_home) in line:
                os.kill(pid, signal.SIGKILL)
        job = await s.finish(job)
        report = await s.call("get_report", report_id=job["job_id"])
        states = report["cells_by_status"]
        assert (report["status"], sum(states.values())) == ("failed", FOR_SERVERS.cells)
        assert set(states) <= {"ok", "failed", "not_run"}
        assert "the engine ended during the run" in report["failures"][0]
        await serve_again_and_measure(s, tiny_model)


async def serve_again_and_measure(s: Session, model: Path) -> None:
    await s.serve(model)
    job = await s.do("run_speed", rig="local", prompts=["code"], max_tokens=8, repeats=1)
    assert (await s.call("get_report", report_id=job["job_id"]))["status"] == "ok"
    await s.do("stop_engine", rig="local")
