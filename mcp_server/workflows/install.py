"""Bringing things to a rig: our own code, engines, weights. What is there already is only checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from mcp_server.rows import RigRow
from mcp_server.workflows.context import RunningJob, connect
from rigs.checkpoints import Checkpoint, PathSource
from rigs.connection import Connection
from rigs.engines.base import Engine
from rigs.errors import CheckpointError, CommandError, RemoteError, UnsupportedFeatureError
from rigs.fetch import FetchRequest
from rigs.plugins import load_engine
from rigs.prepare import RigPython, plan_prepare
from rigs.remote_job import RemoteJob
from rigs.serving import ModelFile, Step


async def prepare(running: RunningJob, rig: RigRow, connection: Connection) -> RigPython:
    """Bring our own code to the rig, unless it is there."""
    if rig.facts.python is None:
        raise UnsupportedFeatureError(
            f"The rig {rig.name!r} has no Python >= 3.11. Install one there (with its venv module), then probe_rig."
        )
    plan = plan_prepare(rig.facts, rig.rig_home)
    ready = await connection.run(["ls", *plan.ready_paths])
    if ready.exit_code:
        running.say("preparing the rig: a virtual environment with the pinned packages")
        for path, content in plan.files.items():
            await connection.put(content, path)
        await run_steps(running, rig, connection, "prepare", plan.steps)
    return plan.rig_python


async def build(running: RunningJob) -> dict[str, object]:
    """Install the pinned version of an engine, unless it is there."""
    rig = running.rig()
    engine = load_engine(str(running.job.args["engine"]))
    connection = connect(rig, running.config)
    try:
        version = await ensure_built(running, rig, connection, engine)
    finally:
        await connection.close()
    return {"rig": rig.name, "engine": engine.name, "engine_version": version}


async def ensure_built(running: RunningJob, rig: RigRow, connection: Connection, engine: Engine) -> str:
    """Return the installed version, after installing it where needed."""
    reasons = engine.reasons(rig.facts)
    if reasons:
        raise UnsupportedFeatureError(f"{engine.title} does not run on {rig.name!r}: {'; '.join(reasons)}.")
    plan = engine.plan_build(rig.facts, rig.rig_home)
    try:
        version = (await connection.run(plan.version_argv)).check()
    except CommandError:
        running.say(f"building {engine.title} {plan.version} ({len(plan.steps)} steps)")
        for path, text in plan.files.items():
            await connection.put(text.encode(), path)
        await run_steps(running, rig, connection, f"build-{plan.key}", plan.steps)
        version = (await connection.run(plan.version_argv)).check(f"asking {engine.title} for its version")
    found = engine.parse_version(version.text)
    running.say(f"{engine.title} {found} is installed")
    return found


async def run_steps(running: RunningJob, rig: RigRow, connection: Connection, name: str, steps: Sequence[Step]) -> None:
    """Run steps as one detached job of this job, to its end.

    Raises:
        RemoteError: a step failed; with the end of its log.
    """
    remote = RemoteJob(connection, f"{rig.rig_home}/jobs/{running.job_id}-{name}")
    env = await install_env(running, rig, connection)
    steps = [step.model_copy(update={"env": {**env, **step.env}}) for step in steps]
    await remote.start_or_attach(steps, again_if_killed=True)
    state = await running.watch(remote, connection)
    if state.exit_code == 0:
        return
    log = await remote.log_tail(3000)
    if "No space left" in log:
        raise RemoteError(f"The disk of {rig.name!r} is full: {name} stopped. Free some space, then try again.")
    ended = "was killed" if state.status == "lost" else f"ended with exit code {state.exit_code}"
    raise RemoteError(f"{name} on {rig.name!r} {ended}. The end of its log:\n{log.strip()[-1500:]}")


async def install_env(running: RunningJob, rig: RigRow, connection: Connection) -> dict[str, str]:
    """Make pip on the rig use the wheelhouse, where there is one, and no index.

    Its wheels are brought to a rig that is another machine, those that lie there already, by name and size, excepted.
    """
    wheelhouse = running.config.wheelhouse
    if wheelhouse is None:
        return {}
    if rig.address is None:
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheelhouse.as_uri()}
    there = f"{rig.rig_home}/wheels"
    sizes = await connection.run(["sh", "-c", 'cd "$1" 2>/dev/null && wc -c *.whl 2>/dev/null', "sh", there])
    present = {(words[1], int(words[0])) for line in sizes.text.splitlines() if len(words := line.split()) == 2}
    wheels = sorted(wheelhouse.glob("*.whl"))
    for number, wheel in enumerate(wheels, 1):
        if (wheel.name, wheel.stat().st_size) not in present:
            running.say(f"bringing wheel {number} of {len(wheels)}: {wheel.name}")
            running.check_cancelled()
            await connection.put(wheel, f"{there}/{wheel.name}")
    # As an address, since pip splits this variable at blanks.
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"file://{quote(there)}"}


async def fetch(running: RunningJob, rig: RigRow, connection: Connection, checkpoint: Checkpoint) -> ModelFile:
    """Bring weights to the rig and prove what they are; what is there already is only checked."""
    python = await prepare(running, rig, connection)
    folder = f"{rig.rig_home}/jobs/{running.job_id}-fetch-{re.sub(r'[^A-Za-z0-9.-]', '-', checkpoint.name)[:60]}"
    result_path = f"{folder}/model.json"
    request = FetchRequest(
        checkpoint=checkpoint,
        models_dir=f"{rig.rig_home}/models",
        result_path=result_path,
        # A path is the user's own file, free to change; what is fetched by name must stay what it was.
        pinned_sha256=None if isinstance(checkpoint.source, PathSource) else running.state.pin(checkpoint.name),
    )
    running.say(f"fetching {checkpoint.name}")
    await connection.put(request.model_dump_json().encode(), f"{folder}/request.json")
    remote = RemoteJob(connection, folder)
    argv = (python.python, "-m", "rigs.fetch", f"{folder}/request.json")
    env = {**python.env, **await install_env(running, rig, connection)}
    await remote.start_or_attach([Step(name="fetch", argv=argv, env=env)], again_if_killed=True)

    async def progress() -> None:
        last = (await remote.log_tail(300)).strip().splitlines()
        if last:
            running.state.set_progress(running.job_id, detail=f"fetching {checkpoint.name}: {last[-1][:200]}")

    state = await running.watch(remote, connection, progress)
    if state.exit_code != 0:
        lines = (await remote.log_tail(2000)).strip().splitlines()
        said = lines[-1] if lines else "it said nothing"
        raise CheckpointError(f"{checkpoint.name} cannot be had on {rig.name!r}: {said}")
    model = ModelFile.model_validate_json(await connection.read_from(result_path, 0))
    if model.pinned_on_first_use and not isinstance(checkpoint.source, PathSource):
        running.state.set_pin(checkpoint.name, model.sha256)
    running.say(f"{model.name}: {model.size_bytes / 1e6:.1f} MB, sha256 {model.sha256[:12]}")
    return model
