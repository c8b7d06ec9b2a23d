"""Bringing our own code to a rig: what is brought, and that it runs there with nothing else of ours."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources.abc import Traversable
from pathlib import Path

import pytest

import rigs.prepare
from rigs.facts import PythonFacts, RigFacts
from rigs.local import LocalConnection
from rigs.prepare import PreparePlan, plan_prepare
from rigs.remote_job import RemoteJob

ROOT = Path(__file__).parents[2]
WHEELHOUSE = ROOT / ".wheelhouse"
FACTS = RigFacts(python=PythonFacts(path=shutil.which("python3") or "python3", version="3.11"))


def plan(rig_home: str = "/rig") -> PreparePlan:
    return plan_prepare(FACTS, rig_home)


def members(plan: PreparePlan) -> dict[str, bytes]:
    (archive,) = (content for path, content in plan.files.items() if path.endswith(".tar"))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: file.read() for member in tar if (file := tar.extractfile(member))}


def test_the_archive_holds_our_modules_and_their_data_and_no_byte_code() -> None:
    found = members(plan())
    on_disk = {
        str(path.relative_to(ROOT)): path.read_bytes()
        for package in ("rigs", "evals")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert found == on_disk
    for name in (
        "rigs/errors.py",
        "rigs/runner.sh",
        "rigs/probe.sh",
        "rigs/rig-requirements.lock",
        "evals/__main__.py",
    ):
        assert found[name]
    assert found["rigs/rig-requirements.lock"] == (ROOT / "rig-requirements.lock").read_bytes()
    assert {name.partition("/")[0] for name in found} == {"rigs", "evals"}
    assert not [name for name in found if name.endswith(".pyc")]


def test_equal_code_gives_equal_bytes_whenever_and_by_whomever_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = plan()
    # A copy in another place, with other times and modes, and with byte code lying about.
    copies = copy_of_our_code(tmp_path, monkeypatch)
    for path in copies.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    (copies / "rigs/__pycache__").mkdir()
    (copies / "rigs/__pycache__/errors.cpython-311.pyc").write_bytes(b"x")
    (copies / "evals/stray.pyc").write_bytes(b"x")
    assert plan() == first


def copy_of_our_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for package in ("rigs", "evals"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))

    def files(package: str) -> Traversable:
        return tmp_path / package

    monkeypatch.setattr(rigs.prepare, "files", files)
    return tmp_path


def test_new_code_lies_beside_the_old_and_shares_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plan()
    source = copy_of_our_code(tmp_path, monkeypatch) / "evals/speed.py"
    source.write_text(source.read_text() + "\n")
    after = plan()
    assert after.source != before.source
    assert after.key != before.key
    assert after.environment == before.environment


def test_another_lock_makes_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan()
    lock = copy_of_our_code(tmp_path, monkeypatch) / "rigs/rig-requirements.lock"
    lock.write_text(lock.read_text() + "\n")
    after = plan()
    assert after.environment != before.environment
    assert after.key != before.key


def test_everything_lies_below_the_rigs_home_and_the_rigs_own_python_is_used() -> None:
    made = plan("/rig home")
    for path in (*made.files, *made.ready_paths, made.environment, made.source):
        assert path.startswith("/rig home/")
    assert FACTS.python
    assert FACTS.python.path in made.steps[0].argv
    assert made.rig_python.python == f"{made.environment}/bin/python"
    assert made.rig_python.env["PYTHONPATH"] == made.source


@pytest.fixture
def rig() -> LocalConnection:
    return LocalConnection()


Start = Callable[[PreparePlan, Path], Awaitable[RemoteJob]]


@pytest.fixture
async def start(rig: LocalConnection) -> AsyncIterator[Start]:
    """Prepares as the worker does it, on a rig without a way to any index; nothing runs on after the test."""
    assert (WHEELHOUSE / ".filled").exists(), "Run the tests with `make test`, which fills .wheelhouse first."
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELHOUSE), "PIP_CONFIG_FILE": os.devnull}
    jobs: list[RemoteJob] = []

    async def begin(made: PreparePlan, folder: Path) -> RemoteJob:
        for path, content in made.files.items():
            await rig.put(content, path)
        jobs.append(RemoteJob(rig, str(folder)))
        await jobs[-1].start_or_attach(
            [step.model_copy(update={"env": env}) for step in made.steps], again_if_killed=True
        )
        return jobs[-1]

    yield begin
    for job in jobs:
        await job.cancel(grace_s=0)


async def finish(job: RemoteJob) -> None:
    while (state := await job.poll()).status == "running":
        await asyncio.sleep(0.1)
    assert state.exit_code == 0, await job.log_tail()


async def schema_as_the_rig_prints_it(rig: LocalConnection, made: PreparePlan) -> object:
    run = made.rig_python
    argv = ["env", "-i", *(f"{name}={value}" for name, value in run.env.items()), run.python, "-m", "evals", "schema"]
    return json.loads((await rig.run(argv)).check("python -m evals schema").text)


def schema() -> object:
    return json.loads((ROOT / "evals/report.schema.json").read_text())


async def test_a_prepared_rig_runs_our_modules_and_holds_no_other_rigbench(
    rig: LocalConnection, start: Start, tmp_path: Path
) -> None:
    made = plan(str(tmp_path / "rig home $x"))
    await finish(await start(made, tmp_path / "job"))
    assert all(Path(path).exists() for path in made.ready_paths)
    assert await schema_as_the_rig_prints_it(rig, made) == schema()

    # What is ready stays as it is: nothing is unpacked or installed again.
    (Path(made.source) / "evals/mark").write_text("")
    (Path(made.environment) / "mark").write_text("")
    await finish(await start(made, tmp_path / "another job"))
    assert (Path(made.source) / "evals/mark").exists()
    assert (Path(made.environment) / "mark").exists()

    # It is those modules that ran, and they are there once.
    shutil.rmtree(made.source)
    alone = await rig.run(["env", "-i", made.rig_python.python, "-m", "evals", "schema"])
    assert b"No module named evals" in alone.stderr


async def test_a_prepare_that_was_cut_in_the_middle_is_repaired_by_the_next(
    rig: LocalConnection, start: Start, tmp_path: Path
) -> None:
    made = plan(str(tmp_path / "rig"))
    job = await start(made, tmp_path / "job")
    python = Path(made.environment) / "bin/python"
    state = await job.poll()
    while not python.exists():
        state = await job.poll()
        assert state.status == "running", await job.log_tail()
        await asyncio.sleep(0.01)
    assert state.pid
    os.killpg(state.pid, signal.SIGKILL)
    while (await job.poll()).status != "lost":
        await asyncio.sleep(0.05)
    assert not any(Path(path).exists() for path in made.ready_paths)
    # The same, cut a little later: half a source tree, and an environment without its packages.
    for half in (f"{made.source}.part", made.source):
        await rig.put(b"raise SystemExit('half of a module')", f"{half}/evals/__init__.py")

    await finish(await start(made, tmp_path / "job"))
    assert await schema_as_the_rig_prints_it(rig, made) == schema()
    assert sorted(path.name for path in Path(made.source).iterdir()) == [".ready", "evals", "rigs"]
