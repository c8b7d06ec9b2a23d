from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_server.rows import JobStatus, RigRow, utc_now
from mcp_server.state import State, StateError
from rigs.errors import UnknownNameError
from rigs.facts import RigFacts


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    state = State(tmp_path / "state.db")
    yield state
    state.close()


def rig(name: str) -> RigRow:
    now = utc_now()
    return RigRow(
        name=name, kind="local", rig_home="/x", python=None, facts=RigFacts(cpu_count=2), attached_at=now, used_at=now
    )


def test_jobs_of_one_rig_start_one_after_the_other_in_the_order_they_came(state: State) -> None:
    first, second, third = (state.add_job("probe", "a", {}) for _ in range(3))
    other, free = state.add_job("probe", "b", {}), state.add_job("render", None, {})
    assert [job.job_id for job in state.take_next()] == [first, other, free]
    assert state.take_next() == []
    state.finish_job(first, JobStatus.DONE)
    assert [job.job_id for job in state.take_next()] == [second]
    state.finish_job(second, JobStatus.FAILED, error="why")
    assert [job.job_id for job in state.take_next()] == [third]


def test_a_job_is_taken_by_one_of_many_takers(state: State, tmp_path: Path) -> None:
    jobs = [state.add_job("render", None, {}) for _ in range(40)]
    taken: list[str] = []
    states = [State(tmp_path / "state.db") for _ in range(4)]
    threads = [
        threading.Thread(target=lambda s=s: [taken.extend(j.job_id for j in s.take_next()) for _ in range(5)])
        for s in states
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for other in states:
        other.close()
    assert sorted(taken) == sorted(jobs)


def test_cancelling_ends_a_queued_job_at_once_and_asks_a_running_one(state: State) -> None:
    running, queued = state.add_job("sweep", "a", {}), state.add_job("sweep", "a", {})
    state.take_next()
    assert state.request_cancel(queued).status == JobStatus.CANCELLED
    job = state.request_cancel(running)
    assert (job.status, job.cancel_requested) == (JobStatus.RUNNING, True)
    assert state.cancel_requested(running)


def test_a_finished_job_stays_as_it_is(state: State) -> None:
    job_id = state.add_job("probe", "a", {"x": ["$(rm -rf /)", 1, None]})
    state.take_next()
    state.set_result(job_id, {"ok": True})
    state.finish_job(job_id, JobStatus.DONE)
    state.finish_job(job_id, JobStatus.FAILED, error="late")
    state.request_cancel(job_id)
    job = state.job(job_id)
    assert (job.status, job.result, job.error, job.cancel_requested) == (JobStatus.DONE, {"ok": True}, None, False)
    assert job.args == {"x": ["$(rm -rf /)", 1, None]}


def test_unknown_names_list_what_there_is(state: State) -> None:
    job_id = state.add_job("probe", None, {})
    state.put_rig(rig("desk"))
    with pytest.raises(UnknownNameError, match=job_id):
        state.job("probe-000000")
    with pytest.raises(UnknownNameError, match="Available: desk. attach_rig"):
        state.rig("dask")
    with pytest.raises(UnknownNameError, match="Available: none"):
        state.unit("x")


def test_a_rig_comes_back_as_it_was_put(state: State) -> None:
    state.put_rig(rig("desk"))
    assert state.rig("desk") == state.rigs()[0]
    state.remove_rig("desk")
    assert state.rigs() == []


def test_a_pin_is_set_once(state: State) -> None:
    assert state.pin("model") is None
    state.set_pin("model", "a" * 64)
    state.set_pin("model", "b" * 64)
    assert state.pin("model") == "a" * 64


def test_events_keep_their_order(state: State) -> None:
    for word in ("one", "two"):
        state.add_event("job", word)
    assert [event.message for event in state.events("job")] == ["one", "two"]


def test_many_processes_may_open_a_new_state_at_once(tmp_path: Path) -> None:
    code = "import sys, pathlib, mcp_server.state as s; s.State(pathlib.Path(sys.argv[1])).add_job('probe', None, {})"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "state.db")]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    state = State(tmp_path / "state.db")
    assert len(state.jobs()) == 4
    state.close()


def test_a_newer_schema_is_refused_and_a_damaged_file_named(tmp_path: Path) -> None:
    State(tmp_path / "state.db").close()
    with sqlite3.connect(tmp_path / "state.db") as db:
        db.execute("update meta set value = '99' where key = 'schema'")
    db.close()
    with pytest.raises(StateError, match="newer rigbench"):
        State(tmp_path / "state.db")
    (tmp_path / "bad.db").write_bytes(b"no database" * 500)
    with pytest.raises(StateError, match="bad.db cannot be read"):
        State(tmp_path / "bad.db")


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    State(tmp_path / "state.db").close()
    assert (tmp_path / "state.db").stat().st_mode & 0o077 == 0


def test_a_full_disk_is_said_and_what_was_written_stays(tmp_path: Path) -> None:
    """The limit on the size of files stands for the disk: the same error reaches SQLite."""
    program = """
import pathlib, resource, sys
from mcp_server.state import State, StateError
state = State(pathlib.Path(sys.argv[1]))
state.add_job("probe", None, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    for _ in range(1000):
        state.add_event("job", "x" * 4000)
except StateError as error:
    print(error)
"""
    database = tmp_path / "state.db"
    process = subprocess.run([sys.executable, "-c", program, str(database)], capture_output=True, text=True, check=True)
    assert "See that its disk has space and is writable." in process.stdout
    state = State(database)
    assert len(state.jobs()) == 1
    assert state.events("job")
    state.close()
