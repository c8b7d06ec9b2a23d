"""The main job on a rig behind SSH: a real sshd on loopback, and its bad days."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.config import Config
from tests.mcp_server.conftest import rig_processes, session
from tests.sshd import Sshd

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path / "sshd", shell_output="Welcome!\\n") as sshd:
        yield sshd


def way(sshd: Sshd, rig_home: Path, **changes: Any) -> dict[str, Any]:
    arguments = {"name": "desk", "address": sshd.address, "key": str(sshd.key), "rig_home": str(rig_home)}
    return {**arguments, "fingerprint": sshd.fingerprint, **changes}


async def test_from_a_client_to_a_report_over_ssh(config: Config, sshd: Sshd, rig_home: Path, tiny_model: Path) -> None:
    async with session(config) as s:
        attached = await s.do("attach_rig", **way(sshd, rig_home))
        assert attached["result"]["address"] == sshd.address
        served = await s.serve(tiny_model, rig="desk")
        assert served["result"]["engine_version"] == "b11549"
        job = await s.do("run_sweep", rig="desk", concurrency=[1, 2], shapes=["48/12"], repeats=2)
        summary = await s.call("get_report", report_id=job["job_id"])
        assert (summary["status"], summary["requests_ok"]) == ("ok", 6)
        report = json.loads(Path(summary["path"]).read_text())
        assert report["arm"]["rig"] == "desk"
        assert report["provenance"]["endpoint"]["base_url"].startswith("http://127.0.0.1:")
        assert len((Path(summary["path"]).parent / "requests.jsonl").read_text().splitlines()) == 6
        await s.do("stop_engine", rig="desk")
        assert rig_processes(rig_home) == {}
        await s.do("detach_rig", rig="desk")


async def test_a_run_goes_on_while_sshd_is_restarted_and_connections_are_cut(
    config: Config, sshd: Sshd, rig_home: Path, tiny_model: Path
) -> None:
    async with session(config) as s:
        await s.do("attach_rig", **way(sshd, rig_home))
        await s.serve(tiny_model, rig="desk")
        job = await s.call("run_sweep", rig="desk", concurrency=[1, 2], shapes=["64/200"], repeats=12)
        for number in range(6):
            job = await s.call("wait_for_job", job_id=job["job_id"], timeout_s=1)
            if job["status"] not in ("queued", "running"):
                break
            if number % 2:
                sshd.stop()
                await asyncio.sleep(1)
                sshd.start()
            else:
                sshd.drop_connections()
        job = await s.finish(job)
        assert job["status"] == "done", f"{job['error']} {job['detail']}"
        cells = (config.runs / job["job_id"] / job["job_id"] / "cells.jsonl").read_text().splitlines()
        assert (
            len(cells) == len({(json.loads(cell)["concurrency"], json.loads(cell)["repeat"]) for cell in cells}) == 24
        )
        await s.do("stop_engine", rig="desk")


async def test_a_rig_that_was_rebooted_has_no_engine_and_a_run_says_so(
    config: Config, sshd: Sshd, rig_home: Path, tiny_model: Path
) -> None:
    async with session(config) as s:
        await s.do("attach_rig", **way(sshd, rig_home))
        served = await s.serve(tiny_model, rig="desk")
        rig_processes(rig_home)  # ends them all, as a reboot does
        for pid_file in (rig_home / "jobs" / f"{served['job_id']}-engine").glob("pid"):
            pid, started, _ = pid_file.read_text().split()
            pid_file.write_text(f"{pid} {started} another-boot\n")
        job = await s.finish(await s.call("run_speed", rig="desk"))
        assert "no longer running" in job["error"]
        assert "serve_engine" in job["error"]
        await s.serve(tiny_model, rig="desk")
        await s.do("stop_engine", rig="desk")


async def test_whoever_cannot_be_trusted_or_reached_is_not_attached(config: Config, sshd: Sshd, rig_home: Path) -> None:
    async with session(config) as s:

        async def refusal(**changes: Any) -> str:
            words = await s.finish_or_error("attach_rig", **way(sshd, rig_home, **changes))
            assert (await s.call("list_rigs"))["rigs"] == []
            return words

        assert sshd.fingerprint in await refusal(fingerprint=None)
        other = "SHA256:" + "A" * 43
        both = await refusal(fingerprint=other)
        assert other in both
        assert sshd.fingerprint in both
        assert "Name the private key" in await refusal(key=None)
        assert "no key file" in await refusal(key="/nowhere/key")
        assert "not of the form user@host" in await refusal(address="desk; rm -rf /")
        assert "for the user 'somebody'" in await refusal(address=f"somebody@127.0.0.1:{sshd.port}")
        sshd.stop()
        assert "cannot be reached" in await refusal()
        sshd.start()


async def test_one_machine_under_two_names_is_refused(config: Config, sshd: Sshd, rig_home: Path) -> None:
    async with session(config) as s:
        await s.do("attach_rig", **way(sshd, rig_home))
        assert "attached already, as 'desk'" in await s.finish_or_error("attach_rig", name="local")


async def test_a_folder_with_other_files_is_not_taken_as_rig_home(config: Config, sshd: Sshd, tmp_path: Path) -> None:
    home = tmp_path / "their home"
    (home / "models").mkdir(parents=True)
    (home / "models" / "theirs.gguf").write_text("mine")
    async with session(config) as s:
        words = await s.finish_or_error("attach_rig", **way(sshd, home))
        assert "holds other files" in words
        (tmp_path / "file").write_text("")
        assert "Cannot use" in await s.finish_or_error("attach_rig", **way(sshd, tmp_path / "file"))
    assert (home / "models" / "theirs.gguf").read_text() == "mine"


async def test_purging_removes_our_folders_and_nothing_else(config: Config, sshd: Sshd, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with session(config) as s:
        await s.do("attach_rig", **way(sshd, home))
        (home / "models").mkdir()
        (home / "notes.txt").write_text("mine")
        await s.do("attach_rig", **way(sshd, home))
        await s.do("detach_rig", rig="desk", purge=True)
        assert [path.name for path in home.iterdir()] == ["notes.txt"]
        await s.do("attach_rig", **way(sshd, tmp_path / "other"))
        await s.do("detach_rig", rig="desk", purge=True)
        assert not (tmp_path / "other").exists()
