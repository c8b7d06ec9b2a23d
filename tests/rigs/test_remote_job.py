from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rigs.errors import CommandError
from rigs.local import LocalConnection
from rigs.remote_job import JobState, RemoteJob
from rigs.serving import Step

# Shells that a rig may have as `sh`; those that this machine lacks are left out.
SHELLS = [shell for shell in ("/bin/dash", "/bin/bash", "/bin/busybox") if Path(shell).exists()]


def sh(script: str) -> list[Step]:
    return [Step(name="work", argv=("sh", "-c", script))]


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[RemoteJob]:
    job = RemoteJob(LocalConnection(), str(tmp_path / "job $x 'y'"))
    yield job
    await job.cancel(grace_s=0)


async def until(job: RemoteJob, status: str, tries: int = 400) -> JobState:
    state = await job.poll()
    for _ in range(tries):
        state = await job.poll()
        if state.status == status:
            return state
        await asyncio.sleep(0.05)
    raise AssertionError(f"never {status}: {state}")


async def until_text(path: Path, tries: int = 400) -> str:
    for _ in range(tries):
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text
        await asyncio.sleep(0.05)
    raise AssertionError(f"never written: {path}")


async def test_a_job_runs_once_however_often_it_is_started(job: RemoteJob, tmp_path: Path) -> None:
    work = sh(f"echo begun >> {tmp_path}/begun; sleep 0.3; exit 7")
    states = await asyncio.gather(*(job.start_or_attach(work) for _ in range(6)))
    assert {state.status for state in states} <= {"running", "exited"}
    assert await until(job, "exited") == JobState(status="exited", exit_code=7)
    assert await job.start_or_attach(work, again_if_killed=True) == JobState(status="exited", exit_code=7)
    assert (tmp_path / "begun").read_text() == "begun\n"


async def test_it_runs_in_a_session_of_its_own_with_no_parent_of_ours(job: RemoteJob) -> None:
    state = await job.start_or_attach(sh("sleep 60"))
    assert state.pid
    assert os.getsid(state.pid) == state.pid
    assert os.getsid(state.pid) != os.getsid(0)


async def test_output_and_step_names_are_in_the_log_and_read_from_an_offset(job: RemoteJob) -> None:
    steps = [
        Step(name="first", argv=("echo", "one; $(false)")),
        Step(name="second", argv=("sh", "-c", 'echo "$WORD" >&2'), env={"WORD": "it's $HOME"}),
    ]
    await job.start_or_attach(steps)
    await until(job, "exited")
    assert await job.read_log() == b"== first (1/2)\none; $(false)\n== second (2/2)\nit's $HOME\n"
    assert await job.read_log(offset=29) == b"== second (2/2)\nit's $HOME\n"
    assert (await job.log_tail(11)) == "it's $HOME\n"


async def test_a_failed_step_ends_the_job_with_its_code(job: RemoteJob) -> None:
    await job.start_or_attach([Step(name="a", argv=("sh", "-c", "exit 5")), Step(name="b", argv=("echo", "never"))])
    assert await until(job, "exited") == JobState(status="exited", exit_code=5)
    assert b"never" not in await job.read_log()


async def test_cancel_ends_the_group_and_a_grandchild_that_ignores_term(job: RemoteJob, tmp_path: Path) -> None:
    script = f"trap '' TERM; sleep 300 & echo $! > {tmp_path}/child; wait; wait"
    await job.start_or_attach(sh(script))
    child = int(await until_text(tmp_path / "child"))
    assert (await job.cancel(grace_s=1)).status == "exited"
    assert not Path(f"/proc/{child}").exists() or _zombie(child)


def _zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")


async def test_cancel_lets_the_job_end_in_its_own_way(job: RemoteJob, tmp_path: Path) -> None:
    await job.start_or_attach(
        sh(f"trap 'echo bye > {tmp_path}/bye; exit 4' TERM; echo up > {tmp_path}/up; while :; do sleep 0.1; done")
    )
    await until_text(tmp_path / "up")
    assert await job.cancel() == JobState(status="exited", exit_code=4)
    assert (tmp_path / "bye").read_text() == "bye\n"


async def test_what_the_job_leaves_in_its_group_goes_with_it(job: RemoteJob, tmp_path: Path) -> None:
    await job.start_or_attach(sh(f"sleep 300 & echo $! > {tmp_path}/left; exit 0"))
    assert (await until(job, "exited")).exit_code == 0
    left = int((tmp_path / "left").read_text())
    for _ in range(100):
        if not Path(f"/proc/{left}").exists() or _zombie(left):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the child outlived the job")


async def test_a_killed_group_is_lost_and_started_again_only_when_asked(job: RemoteJob, tmp_path: Path) -> None:
    work = sh(f"echo begun >> {tmp_path}/begun; sleep 300")
    state = await job.start_or_attach(work)
    await until_text(tmp_path / "begun")
    assert state.pid
    os.killpg(state.pid, signal.SIGKILL)
    assert await until(job, "lost") == JobState(status="lost")
    assert (await job.start_or_attach(work)).status == "lost"
    assert (await job.start_or_attach(work, again_if_killed=True)).status == "running"
    for _ in range(200):
        if (tmp_path / "begun").read_text() == "begun\nbegun\n":
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not start again")


async def test_a_job_that_a_signal_ended_is_started_again_only_when_asked(job: RemoteJob, tmp_path: Path) -> None:
    work = sh(f"echo $$ >> {tmp_path}/begun; [ -e {tmp_path}/twice ] && exit 5; touch {tmp_path}/twice; sleep 300")
    await job.start_or_attach(work)
    os.kill(int(await until_text(tmp_path / "begun")), signal.SIGKILL)
    state = await until(job, "exited")
    assert (state.exit_code, state.was_killed) == (137, True)
    assert await job.start_or_attach(work) == state
    await job.start_or_attach(work, again_if_killed=True)
    assert await until(job, "exited") == JobState(status="exited", exit_code=5)
    assert not JobState(status="exited", exit_code=5).was_killed
    assert await job.start_or_attach(work, again_if_killed=True) == JobState(status="exited", exit_code=5)


async def test_when_only_the_supervisor_is_killed_nothing_of_the_job_outlives_the_verdict(
    job: RemoteJob, tmp_path: Path
) -> None:
    state = await job.start_or_attach(sh(f"echo $$ > {tmp_path}/work; sleep 300"))
    work = int(await until_text(tmp_path / "work"))
    assert state.pid
    os.kill(state.pid, signal.SIGKILL)
    await until(job, "lost")
    for _ in range(100):
        if not Path(f"/proc/{work}").exists() or _zombie(work):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the job runs on although it was called lost")


@pytest.mark.parametrize("field", [1, 2], ids=["start time", "boot id"])
async def test_another_process_with_the_same_pid_is_not_taken_for_the_job(job: RemoteJob, field: int) -> None:
    await job.start_or_attach(sh("exit 0"))
    await until(job, "exited")
    folder = Path(job.folder)
    (folder / "exit").unlink()
    words = (folder / "pid").read_text().split()
    words[0] = str(os.getpid())  # alive, and not ours to kill
    if field == 2:
        own = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19]
        words[1:] = [own, "another-boot"]
    (folder / "pid").write_text(" ".join(words) + "\n")
    assert await job.poll() == JobState(status="lost")
    assert await job.cancel() == JobState(status="lost")


@pytest.mark.parametrize("shell", SHELLS)
async def test_it_works_under_every_shell_that_may_be_sh(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").write_text(f'#!{shell}\nexec {shell} {"sh" if "busybox" in shell else ""} "$@"\n')
    (tmp_path / "bin/sh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    job = RemoteJob(LocalConnection(), str(tmp_path / "job"))
    await job.start_or_attach(sh("echo up; sleep 300"))
    await until_text(tmp_path / "job/log")
    assert (await job.poll()).status == "running"
    assert (await job.cancel()).status == "exited"


async def test_a_job_that_never_was_is_absent(job: RemoteJob) -> None:
    assert await job.poll() == JobState(status="absent")
    assert await job.cancel() == JobState(status="absent")


async def test_a_full_or_forbidden_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((CommandError, Exception), match="file/job"):
        await RemoteJob(LocalConnection(), str(tmp_path / "file/job")).start_or_attach(sh("true"))
