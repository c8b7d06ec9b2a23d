from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mcp_server import daemon
from mcp_server.config import Config
from mcp_server.state import State
from tests.evals.truth_server import TruthServer
from tests.mcp_server.conftest import Session, session


def rigbench(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "mcp_server", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)


def test_on_a_terminal_it_says_how_to_add_it_to_a_client() -> None:
    leader, terminal = pty.openpty()
    process = subprocess.run([sys.executable, "-m", "mcp_server"], stdin=terminal, capture_output=True, text=True)
    os.close(leader)
    os.close(terminal)
    assert process.returncode == 0
    assert "claude mcp add rigbench -- rigbench" in process.stdout


def test_without_a_terminal_it_serves_until_stdin_closes_and_prints_nothing_else(config: Config) -> None:
    process = rigbench()
    assert (process.returncode, process.stdout) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_also_while_stdin_is_open(config: Config, number: int) -> None:
    process = subprocess.Popen([sys.executable, "-m", "mcp_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
    hello["params"] = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    process.stdin.write(json.dumps(hello).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "rigbench"
    process.send_signal(number)
    assert process.wait(timeout=20) == 0
    process.stdin.close()
    process.stdout.close()


def test_a_state_that_cannot_be_used_ends_the_server_in_words(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    config.database.write_bytes(b"no database" * 500)
    process = rigbench("serve")
    assert (process.returncode, process.stdout) == (1, "")
    assert "cannot be read" in process.stderr
    config.database.unlink()
    monkeypatch.setenv("RIGBENCH_WAIT_CAP_S", "abc")
    assert "RIGBENCH_WAIT_CAP_S is 'abc'" in rigbench("serve").stderr
    monkeypatch.delenv("RIGBENCH_WAIT_CAP_S")
    (config.home / "file").write_text("")
    monkeypatch.setenv("RIGBENCH_HOME", str(config.home / "file"))
    process = rigbench("serve")
    assert "cannot be used" in process.stderr
    assert "Traceback" not in process.stderr


def test_help_and_version() -> None:
    assert "measure" in rigbench("--help").stdout
    assert "--concurrency" in rigbench("measure", "sweep", "--help").stdout
    assert rigbench("--version").stdout.startswith("rigbench 0.")


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("worker",), ("measure",), ("measure", "speed"), ("measure", "speed", "--max-tokens", "many")],
)
def test_wrong_usage_is_2_and_says_what_is_right(arguments: tuple[str, ...]) -> None:
    process = rigbench(*arguments)
    assert process.returncode == 2
    assert "usage: rigbench" in process.stderr


def test_the_worker_is_shown_and_ended(config: Config) -> None:
    assert "not running" in rigbench("worker", "status").stdout
    assert rigbench("worker", "stop").stdout == "no worker runs\n"
    state = State(config.database)
    state.add_job("build", "local", {"engine": "x"})
    state.close()
    daemon.ensure_worker(config)
    for _ in range(200):
        if daemon.ready(config):
            break
        time.sleep(0.05)
    status = json.loads(rigbench("worker", "status", "--json").stdout)
    assert status["pid"] == daemon.worker_pid(config)
    assert status["version"]
    assert status["home"] == str(config.home)
    process = rigbench("worker", "stop")
    assert (process.returncode, process.stdout) == (0, f"worker {status['pid']} ended\n")
    assert daemon.worker_pid(config) is None


def test_without_a_state_the_lists_say_how_to_make_one(config: Config) -> None:
    for command in (("jobs",), ("reports",), ("report", "x"), ("clean",)):
        process = rigbench(*command)
        assert process.returncode == 1
        assert "There is no state" in process.stderr


def test_jobs_and_reports_are_shown_without_a_client(config: Config, tiny_model: Path) -> None:
    async def main() -> str:
        async with session(config) as s:
            await s.do("attach_rig")
            await s.serve(tiny_model)
            job = await s.do("run_sweep", rig="local", concurrency=[1], shapes=["48/8"], repeats=1)
            assert "Wait for it or cancel it" in (await busy(s)).stderr
            await s.do("stop_engine", rig="local")
            return job["job_id"]

    async def busy(s: Session) -> subprocess.CompletedProcess[str]:
        running = await s.call("run_sweep", rig="local", concurrency=[1], shapes=["48/400"], repeats=50)
        process = await asyncio.to_thread(rigbench, "clean", "--models")
        await s.call("cancel_job", job_id=running["job_id"])
        await s.finish(running)
        return process

    report_id = asyncio.run(main())
    jobs = json.loads(rigbench("jobs", "--json").stdout)
    assert {job["kind"] for job in jobs} == {"attach", "serve", "sweep", "stop"}
    assert report_id in rigbench("jobs", "--rig", "local").stdout
    assert "best" in rigbench("reports").stdout
    assert len(json.loads(rigbench("reports", "--json").stdout)) == 2
    assert rigbench("report", report_id).stdout.startswith("# Sweep: local")
    assert json.loads(rigbench("report", report_id, "--json").stdout)["report_id"] == report_id
    assert "Unknown report 'nope'" in rigbench("report", "nope").stderr
    shown = rigbench("clean").stdout
    assert "4 jobs" in shown
    assert "engines" in shown
    cleaned = json.loads(rigbench("clean", "--models", "--json").stdout)
    assert all(path.endswith("/models") for path in cleaned["removed"])


def measure(kind: str, server: TruthServer, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    address = ("--base-url", server.base_url, "--model", "fake", "--out", str(out))
    return rigbench("measure", kind, *address, *more)


def test_any_endpoint_is_measured_without_a_rig(tmp_path: Path) -> None:
    with TruthServer(ttft_ms=5, gap_ms=1, process=True) as server:
        small = ("--concurrency", "1,3", "--shapes", "20/8", "--repeats", "1", "--engine", "llamacpp")
        process = measure("sweep", server, tmp_path / "sweep", *small)
        assert process.returncode == 0, process.stderr
        assert process.stdout == ""
        assert str(tmp_path / "sweep/report.json") in process.stderr
        process = measure("speed", server, tmp_path / "speed", "--prompts", "code", "--max-tokens", "8", "--seed", "3")
        assert process.returncode == 0, process.stderr
    report = json.loads((tmp_path / "sweep/report.json").read_text())
    assert report["arm"]["rig"] is None
    assert [cell["input_tokens"]["got"] for cell in report["cells"]] == [20, 20]
    assert len((tmp_path / "sweep/requests.jsonl").read_text().splitlines()) == 4
    assert json.loads((tmp_path / "speed/report.json").read_text())["seed"] == 3


def test_questions_of_a_file_are_scored_on_any_endpoint(tmp_path: Path) -> None:
    rows = [{"question": f"What is {number} + 1?", "answer": f"#### {number + 1}"} for number in range(3)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = ("--dataset", "gsm8k", "--source", str(tmp_path / "test.jsonl"), "--max-tokens", "9", "--limit", "2")
    with TruthServer(text="#### 1", process=True) as server:
        process = measure("eval", server, tmp_path / "out", *asked)
        assert process.returncode == 0, process.stderr
        assert "gsm8k: 1 of 2 right, 50.0%" in process.stderr
        assert measure("eval", server, tmp_path / "out", *asked).returncode == 0
        assert len(server.requests) == 2, "run again, a finished unit sends nothing"
        (tmp_path / "test.jsonl").write_text("{")
        process = measure("eval", server, tmp_path / "other", *asked)
    assert process.returncode == 1
    assert "Line 1 of" in process.stderr


def test_run_again_it_goes_on_in_the_same_folder_and_refuses_another_unit(tmp_path: Path) -> None:
    with TruthServer(process=True) as server:
        small = ("--concurrency", "1", "--shapes", "20/4", "--repeats", "3", "--engine", "llamacpp")
        assert measure("sweep", server, tmp_path, *small).returncode == 0
        cells = (tmp_path / "cells.jsonl").read_text().splitlines()
        (tmp_path / "cells.jsonl").write_text("\n".join(cells[:2]) + "\n" + cells[2][:20])
        assert measure("sweep", server, tmp_path, *small).returncode == 0
        again = (tmp_path / "cells.jsonl").read_text().splitlines()
        assert (len(again), again[:2]) == (3, cells[:2])
        other = measure("sweep", server, tmp_path, *small[:-2], "--context-tokens", "99")
        assert other.returncode == 1
        assert "holds another unit" in other.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--max-tokens", "0"), "max_tokens"),
        (("--prompts", "code,poem"), "Unknown prompt 'poem'"),
        (("--engine", "vlm"), "Unknown engine 'vlm'. Available: llamacpp"),
        (("--api-key-env", "NO_SUCH_KEY"), "NO_SUCH_KEY, which is not set"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(tmp_path: Path, more: tuple[str, ...], words: str) -> None:
    with TruthServer() as server:
        process = measure("speed", server, tmp_path, *more)
    assert process.returncode == 1
    assert words in process.stderr
    assert "Traceback" not in process.stderr


def test_an_endpoint_that_is_not_there_is_a_failed_report(tmp_path: Path) -> None:
    process = rigbench(
        *("measure", "speed", "--base-url", "http://127.0.0.1:9", "--model", "x", "--out", str(tmp_path)),
        *("--prompts", "code", "--repeats", "1"),
    )
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["status"] == "failed"
    assert "127.0.0.1:9" in report["reason"]


def test_a_key_is_sent_and_never_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    with TruthServer(process=True) as server:
        process = measure(
            "speed", server, tmp_path, "--prompts", "code", "--api-key-env", "MY_KEY", "--max-tokens", "4"
        )
    assert process.returncode == 0, process.stderr
    for path in tmp_path.iterdir():
        assert b"sk-very-secret" not in path.read_bytes()


@pytest.mark.timeout(300)
def test_the_demo_runs_and_leaves_nothing(config: Config) -> None:
    process = rigbench("demo", "--quick", "--json", timeout_s=280)
    assert process.returncode == 0, process.stderr
    (line,) = process.stdout.splitlines()
    results = json.loads(line)
    assert results["checkpoint"] == "smollm2-135m-instruct-q4_1"
    assert results["speed"]["speed"]["geomean_decode_tok_s"] > 0
    assert results["speed_with_drafter"]["arm"]["drafter"] == "ngram"
    assert [cell["ok"] for cell in results["sweep"]["cells"]] == [1, 2]
    assert (results["eval"]["status"], results["eval"]["eval"]["n"]) == ("ok", 6)
    assert daemon.worker_pid(config) is None
    state = State(config.database)
    assert state.rigs() == []
    state.close()
