"""The worker: one per state, killed at any moment, replaced, cancelled, idle. Real processes throughout."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mcp_server import daemon
from mcp_server.config import Config, load
from mcp_server.rows import JobStatus
from mcp_server.state import State
from mcp_server.worker import Worker
from tests.mcp_server.conftest import Session, end_worker, processes, rig_processes, session
from tests.mcp_server.test_tools import FACTS, put_rig

pytestmark = pytest.mark.timeout(300)


@asynccontextmanager
async def serving(config: Config, model: Path) -> AsyncIterator[Session]:
    """A rig that serves the tiny model; stopped at the end."""
    async with session(config) as s:
        await s.do("attach_rig")
        await s.serve(model)
        yield s
        await s.do("stop_engine", rig="local")


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    for _ in range(600):
        if await condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"never: {what}")


def cells_of(config: Config, job_id: str) -> list[str]:
    lines = (config.runs / job_id / job_id / "cells.jsonl").read_text().splitlines()
    cells = [json.loads(line) for line in lines]
    return [f"{cell['concurrency']} {cell['repeat']}" for cell in cells]


async def some_cells(s: Session, job_id: str, count: int) -> None:
    async def enough() -> bool:
        return any(
            job["job_id"] == job_id and (job["done"] or 0) >= count for job in (await s.call("list_jobs"))["jobs"]
        )

    await until(enough, f"{count} cells of {job_id}")


async def test_servers_that_start_at_once_leave_one_worker(config: Config) -> None:
    code = "from mcp_server import config, daemon; daemon.start_worker(config.load())"
    starters = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(6)]
    assert [starter.wait() for starter in starters] == [0] * 6

    async def ready() -> bool:
        return daemon.ready(config) is not None

    await until(ready, "ready")
    pid = daemon.worker_pid(config)
    assert pid
    assert os.getsid(pid) != os.getsid(0), "it must survive the end of the client's session"
    state = Path(f"/proc/{pid}/environ").read_bytes()
    assert f"RIGBENCH_HOME={config.home}".encode() in state

    async def alone() -> bool:
        return sum("mcp_server.daemon" in line and belongs(config, p) for p, line in processes().items()) == 1

    await until(alone, "one worker")


def belongs(config: Config, pid: int) -> bool:
    try:
        return f"RIGBENCH_HOME={config.home}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    except OSError:
        return False


async def test_a_sweep_whose_worker_is_killed_again_and_again_records_every_cell_once(
    config: Config, tiny_model: Path
) -> None:
    async with serving(config, tiny_model) as s:
        job = await s.call("run_sweep", rig="local", concurrency=[1, 2, 4], shapes=["64/96"], repeats=8)
        kills = 0
        while job["status"] in ("queued", "running"):
            job = await s.call("wait_for_job", job_id=job["job_id"], timeout_s=1.2)
            pid = daemon.worker_pid(config)
            if pid and kills < 4 and job["status"] == "running" and daemon.ready(config):
                os.kill(pid, signal.SIGKILL)
                kills += 1
        assert kills >= 1
        assert job["status"] == "done", job
        cells = cells_of(config, job["job_id"])
        assert len(cells) == len(set(cells)) == 24
        assert len((await s.call("list_reports"))["reports"]) == 1
        report = await s.call("get_report", report_id=job["job_id"])
        assert (report["status"], report["requests_ok"], report["requests_failed"]) == ("ok", 56, 0)


async def test_a_serve_whose_worker_is_killed_goes_on_and_leaves_one_engine(
    config: Config, rig_home: Path, tiny_model: Path
) -> None:
    async with session(config) as s:
        await s.do("attach_rig")
        await s.do("build_engine", rig="local")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        wanted = {"checkpoint": str(tiny_model), "context_tokens": 128, "threads": 1, "port": port}
        job = await s.call("serve_engine", rig="local", **wanted)

        async def begun() -> bool:
            return "starting" in (await s.call("wait_for_job", job_id=job["job_id"], timeout_s=0))["detail"]

        await until(begun, "begun")
        pid = daemon.worker_pid(config)
        assert pid
        os.kill(pid, signal.SIGKILL)
        job = await s.finish(job)
        assert job["status"] == "done", job
        assert sum("server.py" in line for line in processes().values() if str(rig_home) in line) == 1
        await s.do("stop_engine", rig="local")
        assert rig_processes(rig_home) == {}


async def test_a_killed_measuring_process_goes_on_after_the_last_cell(
    config: Config, rig_home: Path, tiny_model: Path
) -> None:
    async with serving(config, tiny_model) as s:
        job = await s.call("run_sweep", rig="local", concurrency=[1, 2], shapes=["64/96"], repeats=8)
        await some_cells(s, job["job_id"], 3)
        for pid, line in processes().items():
            if "-m evals" in line and str(rig_home) in line:
                os.killpg(os.getpgid(pid), signal.SIGKILL)
        job = await s.finish(job)
        assert job["status"] == "done", job
        cells = cells_of(config, job["job_id"])
        assert len(cells) == len(set(cells)) == 16
        log = await s.call("read_job_log", job_id=job["job_id"])
        assert any("was killed" in event for event in log["events"])


async def test_an_engine_that_dies_during_a_run_is_said_in_the_report(
    config: Config, rig_home: Path, tiny_model: Path
) -> None:
    async with session(config) as s:
        await s.do("attach_rig")
        await s.serve(tiny_model)
        job = await s.call("run_sweep", rig="local", concurrency=[1, 2], shapes=["64/96"], repeats=10)
        await some_cells(s, job["job_id"], 3)
        for pid, line in processes().items():
            if "server.py" in line and str(rig_home) in line:
                os.kill(pid, signal.SIGKILL)
        job = await s.finish(job)
        report = await s.call("get_report", report_id=job["job_id"])
        assert report["status"] == "failed"
        assert "the engine ended during the run" in report["failures"][0]
        assert report["cells_by_status"]["ok"] >= 3
        assert report["cells_by_status"]["not_run"] >= 1
        assert sum(report["cells_by_status"].values()) == 20
        assert (await s.call("list_rigs"))["rigs"][0]["served"] is None
        assert "Nothing is served" in await s.error("run_speed", rig="local")


async def test_a_run_on_an_engine_that_died_before_says_so(config: Config, rig_home: Path, tiny_model: Path) -> None:
    async with session(config) as s:
        await s.do("attach_rig")
        await s.serve(tiny_model)
        for pid, line in processes().items():
            if "server.py" in line and str(rig_home) in line:
                os.killpg(os.getpgid(pid), signal.SIGKILL)
        job = await s.finish(await s.call("run_speed", rig="local"))
        assert job["status"] == "failed"
        assert "no longer running" in job["error"]
        assert "serve_engine" in job["error"]


async def test_a_cancelled_run_keeps_its_cells_and_frees_the_rig(config: Config, tiny_model: Path) -> None:
    async with serving(config, tiny_model) as s:
        job = await s.call("run_sweep", rig="local", concurrency=[1], shapes=["64/400"], repeats=100)
        waiting = await s.call("run_speed", rig="local")
        await some_cells(s, job["job_id"], 2)
        partial = await s.call("get_report", report_id=job["job_id"])
        assert partial["status"] == "running"
        assert partial["requests_ok"] >= 2
        await s.call("cancel_job", job_id=waiting["job_id"])
        await s.call("cancel_job", job_id=job["job_id"])
        assert (await s.finish(job))["status"] == "cancelled"
        report = await s.call("get_report", report_id=job["job_id"])
        assert report["status"] == "cancelled"
        assert report["cells_by_status"]["ok"] == len(cells_of(config, job["job_id"]))


async def test_a_run_cancelled_after_its_worker_died_is_ended_and_its_cells_are_kept(
    config: Config, rig_home: Path, tiny_model: Path
) -> None:
    async with serving(config, tiny_model) as s:
        job = await s.call("run_sweep", rig="local", concurrency=[1], shapes=["64/400"], repeats=100)
        await some_cells(s, job["job_id"], 2)
        pid = daemon.worker_pid(config)
        assert pid
        os.kill(pid, signal.SIGKILL)
        await s.call("cancel_job", job_id=job["job_id"])
        assert (await s.finish(job))["status"] == "cancelled"
        assert not [line for line in processes().values() if "-m evals" in line and str(rig_home) in line]
        report = await s.call("get_report", report_id=job["job_id"])
        assert report["status"] == "cancelled"
        assert report["cells_by_status"]["ok"] >= 2


async def test_another_installation_is_kept_out_of_a_rig_home(
    config: Config, rig_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session(config) as s:
        await s.do("attach_rig")
        monkeypatch.setenv("RIGBENCH_HOME", str(tmp_path / "other"))
        other = load()
        async with session(other) as t:
            words = await t.finish_or_error("attach_rig")
            assert f"Another rigbench (another RIGBENCH_HOME) works in {rig_home}" in words
            await s.do("detach_rig", rig="local")
            await t.do("attach_rig")
            await t.do("detach_rig", rig="local")
        end_worker(other)


async def test_two_attaches_at_once_leave_one_rig_on_the_machine(config: Config, tmp_path: Path) -> None:
    async with session(config) as s:
        await s.do("attach_rig")
        await s.do("detach_rig", rig="local")  # the worker is up: both start at the same moment
        for number in range(3):
            homes = [str(tmp_path / f"home-{number}-{name}") for name in ("a", "b")]
            jobs = await asyncio.gather(
                *(
                    s.client.call_tool("attach_rig", {"name": n, "rig_home": h})
                    for n, h in zip("ab", homes, strict=True)
                )
            )
            for job in jobs:
                if job.structured_content:  # pyright: ignore[reportAttributeAccessIssue]
                    await s.finish(job.structured_content)  # pyright: ignore[reportAttributeAccessIssue]
            (rig,) = (await s.call("list_rigs"))["rigs"]
            await s.do("detach_rig", rig=rig["name"])


async def test_tools_answer_while_a_job_runs(config: Config, tiny_model: Path) -> None:
    async with serving(config, tiny_model) as s:
        job = await s.call("run_sweep", rig="local", concurrency=[2], shapes=["64/200"], repeats=30)
        await some_cells(s, job["job_id"], 1)
        for tool, arguments in (
            ("list_rigs", {}),
            ("list_engines", {"rig": "local"}),
            ("list_checkpoints", {}),
            ("list_jobs", {}),
            ("list_reports", {}),
            ("read_job_log", {"job_id": job["job_id"]}),
            ("get_report", {"report_id": job["job_id"]}),
        ):
            await s.call(tool, **arguments)
        queued = await s.call("stop_engine", rig="local")
        assert queued["status"] == "queued", "jobs of one rig run one after the other"
        await s.call("cancel_job", job_id=queued["job_id"])
        await s.call("cancel_job", job_id=job["job_id"])
        await s.finish(job)


async def test_an_older_worker_is_replaced_and_its_jobs_go_on(
    config: Config, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(config, tiny_model) as s:
        job = await s.call("run_sweep", rig="local", concurrency=[1], shapes=["64/200"], repeats=20)
        await some_cells(s, job["job_id"], 1)
        old = daemon.worker_pid(config)
        monkeypatch.setattr(daemon, "VERSION", "99.0.0")
        monkeypatch.setattr(daemon, "BOOT_S", 0.0)
        daemon.ensure_worker(config)
        monkeypatch.undo()

        async def replaced() -> bool:
            found = daemon.ready(config)
            return found is not None and found.pid != old

        await until(replaced, "replaced")
        assert (await s.finish(job))["status"] == "done"
        assert len(set(cells_of(config, job["job_id"]))) == 20


def test_an_engine_without_a_job_is_stopped_after_its_time(config: Config) -> None:
    put_rig(config, FACTS, served=True)
    state = State(config.database)
    worker = Worker(config, state)
    now = datetime.now(UTC)
    worker.stop_idle_engines(now + timedelta(minutes=config.idle_stop_min - 1))
    assert state.jobs() == []
    busy = state.add_job("sweep", "local", {})
    worker.stop_idle_engines(now + timedelta(minutes=config.idle_stop_min + 1))
    assert [job.job_id for job in state.jobs()] == [busy], "a rig with a job is not idle"
    state.take_next()
    state.finish_job(busy, JobStatus.DONE)
    worker.stop_idle_engines(now + timedelta(minutes=config.idle_stop_min + 1))
    worker.stop_idle_engines(now + timedelta(minutes=config.idle_stop_min + 2))
    assert [job.kind for job in state.jobs()] == ["stop", "sweep"], "asked once"
    state.close()


def test_a_worker_with_nothing_to_do_ends_and_one_with_an_engine_does_not(config: Config) -> None:
    state = State(config.database)
    worker = Worker(config, state)
    worker.busy_at -= config.worker_idle_min * 60 + 1
    assert worker.is_idle()
    put_rig(config, FACTS, served=True)
    worker.stop_idle_engines(datetime.now(UTC))
    assert not worker.is_idle()
    state.close()


async def test_a_fault_of_ours_fails_the_job_and_not_the_worker(config: Config) -> None:
    async with session(config) as s:
        state = State(config.database)
        job_id = state.add_job("render", None, {"report_id": 5, "format": "csv"})
        bad = state.add_job("attach", "x", {"kind": "local"})
        state.close()
        daemon.ensure_worker(config)
        first = await s.finish(await s.call("wait_for_job", job_id=job_id))
        second = await s.finish(await s.call("wait_for_job", job_id=bad))
        assert "Unknown report '5'" in first["error"]
        assert "A fault in rigbench (KeyError" in second["error"]
        assert (await s.do("attach_rig"))["status"] == "done"
        log = (config.worker_folder / "log").read_text()
    assert "Traceback" in log, "the details are in the worker's log"


def test_a_full_log_is_rotated(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "LOG_LIMIT_BYTES", 10)
    (config.worker_folder / "log").write_text("x" * 11)
    daemon.start_worker(config)
    assert (config.worker_folder / "log.1").read_text() == "x" * 11


async def test_the_worker_survives_the_end_of_its_server(config: Config, tmp_path: Path) -> None:
    program: Any = [sys.executable, "-m", "mcp_server"]
    from mcp import Client, StdioServerParameters

    async with Client(StdioServerParameters(command=program[0], args=program[1:], env=dict(os.environ))) as client:
        job = await Session(client).call("attach_rig")
    async with session(config) as s:
        assert (await s.finish(job))["status"] == "done"
