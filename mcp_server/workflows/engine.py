"""Serving and stopping an engine on a rig."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from mcp_server.rows import RigRow, ServedEngine, utc_now
from mcp_server.workflows.context import RunningJob, connect
from mcp_server.workflows.install import ensure_built, fetch
from mcp_server.workflows.readiness import FirstAnswer, first_answer
from rigs.checkpoints import Checkpoint, resolve
from rigs.connection import Connection
from rigs.engines.base import Engine
from rigs.errors import (
    EngineNotReadyError,
    RemoteError,
    UnreachableError,
    UnsupportedFeatureError,
    UsageError,
)
from rigs.file_hashes import write_whole
from rigs.plugins import load_engine
from rigs.remote_job import RemoteJob
from rigs.serving import Arm, Drafter, Endpoint, LaunchPlan, ModelFile, ServeSpec, Step


async def serve(running: RunningJob) -> dict[str, object]:
    """Bring an engine and its weights to the rig, start it, and wait until it answers."""
    rig = running.rig()
    args = running.job.args
    engine = load_engine(str(args["engine"]))
    connection = connect(rig, running.config)
    try:
        await _refuse_a_second_engine(running, rig, connection)
        version = await ensure_built(running, rig, connection, engine)
        checkpoint = resolve(str(args["checkpoint"]))
        _check_format(engine, checkpoint)
        model = await fetch(running, rig, connection, checkpoint)
        drafter = await _drafter(running, rig, connection, engine, checkpoint)
        running.check_cancelled()
        spec = await _spec(running, rig, connection, checkpoint, model, drafter)
        engine.check(spec, rig.facts)
        plan = engine.plan_serve(spec, rig.facts, rig.rig_home)
        served = await _start(running, rig, connection, engine, spec, plan, version)
    finally:
        await connection.close()
    running.state.set_served(rig.name, served)
    running.say(f"{engine.title} {version} serves {model.name} at {served.endpoint.base_url}")
    return {
        "rig": rig.name,
        "engine": engine.name,
        "engine_version": version,
        "checkpoint": model.name,
        "base_url": served.endpoint.base_url,
        "start_up_s": served.start_up_s,
        "warnings": list(served.warnings),
    }


async def _spec(
    running: RunningJob,
    rig: RigRow,
    connection: Connection,
    checkpoint: Checkpoint,
    model: ModelFile,
    drafter: Drafter | None,
) -> ServeSpec:
    """Decide what is served, once: a step that runs again must find the engine on the port that it chose before."""
    path = running.folder / "serve.json"
    if path.exists():
        return ServeSpec.model_validate_json(path.read_bytes())
    args = running.job.args
    spec = ServeSpec(
        engine=str(args["engine"]),
        model=model,
        drafter=drafter,
        context_tokens=_integer(args, "context_tokens"),
        parallel=_integer(args, "parallel"),
        port=await _port(rig, connection, _integer_or_none(args, "port")),
        alias=checkpoint.name,
        threads=_integer_or_none(args, "threads"),
    )
    write_whole(path, spec.model_dump_json().encode())
    return spec


async def _start(
    running: RunningJob,
    rig: RigRow,
    connection: Connection,
    engine: Engine,
    spec: ServeSpec,
    plan: LaunchPlan,
    version: str,
) -> ServedEngine:
    """Start the engine as a detached job and wait for its first right answer; on any failure nothing of it stays."""
    for path, text in plan.files.items():
        await connection.put(text.encode(), path)
    remote = RemoteJob(connection, f"{rig.rig_home}/jobs/{running.job_id}-engine")
    started_at, began = utc_now(), time.monotonic()
    running.say(f"starting {engine.title} on port {plan.port}")
    await remote.start_or_attach([Step(name="serve", argv=plan.argv, env=plan.env)])
    try:
        await _until_ready(running, connection, remote, engine, spec, plan)
    except UnreachableError:
        raise  # it loads on; the step runs again, and finds it
    except BaseException:
        # Also for a cancelled task: an engine that is in no row would run until the next reboot.
        await remote.cancel(grace_s=5)
        await running.mirror(remote.log_path, running.log, connection)
        raise
    start_up_s = round(time.monotonic() - began, 2)
    log = await remote.read_log()
    return ServedEngine(
        arm=Arm(
            rig=rig.name,
            accelerator=plan.runs_on,
            engine=engine.name,
            engine_version=version,
            checkpoint=spec.model,
            drafter=spec.drafter,
            draft_tokens=spec.drafter.draft_tokens if spec.drafter else None,
            argv=plan.argv,
        ),
        endpoint=Endpoint(
            base_url=f"http://127.0.0.1:{plan.port}",
            model=spec.alias,
            request=engine.request_fields(),
            context_tokens=spec.context_tokens,
            parallel=spec.parallel,
        ),
        plan=plan,
        job_folder=remote.folder,
        started_at=started_at,
        start_up_s=start_up_s,
        warnings=tuple(explain(log.decode("utf-8", "replace"), plan.warning_lines)),
    )


async def _until_ready(
    running: RunningJob,
    connection: Connection,
    remote: RemoteJob,
    engine: Engine,
    spec: ServeSpec,
    plan: LaunchPlan,
) -> None:
    local_port = await connection.forward(plan.port)
    deadline = time.monotonic() + plan.ready_timeout_s
    said = ""
    while True:
        running.check_cancelled()
        state = await remote.poll()
        await running.mirror(remote.log_path, running.log, connection)
        if state.status != "running":
            log = (await remote.read_log()).decode("utf-8", "replace")
            raise EngineNotReadyError(
                f"{engine.title} ended at its start with exit code {state.exit_code}: {why_it_ended(log, plan)} "
                "read_job_log shows the rest."
            )
        answer = await _unless_cancelled(
            running, first_answer(f"http://127.0.0.1:{local_port}", spec.alias, engine.request_fields())
        )
        if answer.tokens:
            running.say(f"first answer: {answer.tokens} tokens")
            return
        if answer.waiting_for != said:
            said = answer.waiting_for
            running.say(f"waiting for {engine.title}: {said}")
        if time.monotonic() > deadline:
            raise EngineNotReadyError(
                f"{engine.title} gave no right answer within {plan.ready_timeout_s:g} s: {said}. It was stopped; "
                "read_job_log shows what it logged."
            )
        await asyncio.sleep(0.25)


async def _unless_cancelled(running: RunningJob, asking: Coroutine[Any, Any, FirstAnswer]) -> FirstAnswer:
    """Wait for an answer, which may take minutes while an engine compiles, and look at the cancel flag meanwhile."""
    task = asyncio.ensure_future(asking)
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=0.5)
            if done:
                return task.result()
            running.check_cancelled()
    finally:
        task.cancel()


async def stop(running: RunningJob) -> dict[str, object]:
    """End the engine of a rig; nothing to end is fine."""
    rig = running.rig()
    if rig.served is None:
        running.say("no engine runs there")
        return {"rig": rig.name, "stopped": None}
    connection = connect(rig, running.config)
    try:
        await end_engine(running, rig, connection)
    finally:
        await connection.close()
    return {"rig": rig.name, "stopped": rig.served.arm.engine}


async def end_engine(running: RunningJob, rig: RigRow, connection: Connection) -> None:
    """End the engine's whole process group and see that its port is free.

    Raises:
        RemoteError: somebody else answers on the port.
    """
    served = rig.served
    assert served
    running.say(f"stopping {served.arm.engine}")
    remote = RemoteJob(connection, served.job_folder)
    await remote.cancel(grace_s=10)
    await running.mirror(remote.log_path, running.folder / "engine.log", connection)
    running.state.set_served(rig.name, None)
    for _ in range(50):
        if await port_is_free(rig, connection, served.plan.port):
            running.say(f"stopped; port {served.plan.port} is free")
            return
        await asyncio.sleep(0.1)
    raise RemoteError(
        f"The engine on {rig.name!r} has ended, but port {served.plan.port} is still taken by another process."
    )


def why_it_ended(log: str, plan: LaunchPlan) -> str:
    """Say in words what the log of an engine shows, else give its last line."""
    found = explain(log, plan.failure_lines)
    if found:
        return f"{found[0]}."
    lines = [line for line in log.strip().splitlines() if line.strip()]
    return f"its last words: {lines[-1].strip()[:300]!r}." if lines else "it logged nothing."


def explain(log: str, meanings: Mapping[str, str]) -> list[str]:
    """Return the meaning of each pattern that a line of the log matches, with that line, in the patterns' order."""
    lines = log.splitlines()
    found: list[str] = []
    for pattern, meaning in meanings.items():
        line = next((line for line in lines if re.search(pattern, line)), None)
        if line is not None:
            found.append(f"{meaning} ({line.strip()[:200]!r})")
    return found


async def engine_is_alive(connection: Connection, served: ServedEngine) -> bool:
    return (await RemoteJob(connection, served.job_folder).poll()).status == "running"


async def _refuse_a_second_engine(running: RunningJob, rig: RigRow, connection: Connection) -> None:
    if rig.served is None:
        return
    if rig.served.job_folder.endswith(f"/{running.job_id}-engine"):
        return  # this very job, run again after the worker died
    if await engine_is_alive(connection, rig.served):
        raise UsageError(
            f"{rig.name!r} already serves {rig.served.endpoint.model} with {rig.served.arm.engine}, and a chip is "
            f"measured with one engine at a time. Call stop_engine(rig={rig.name!r}) first."
        )
    running.say(f"{rig.served.arm.engine} had ended by itself")
    running.state.set_served(rig.name, None)


def _check_format(engine: Engine, checkpoint: Checkpoint) -> None:
    if checkpoint.format not in engine.formats:
        formats = ", ".join(sorted(engine.formats))
        raise UnsupportedFeatureError(
            f"{engine.title} loads {formats}, and {checkpoint.name} is {checkpoint.format}. "
            "list_checkpoints says which engines load what."
        )


async def _drafter(
    running: RunningJob, rig: RigRow, connection: Connection, engine: Engine, model: Checkpoint
) -> Drafter | None:
    name, draft_tokens = running.argument("drafter"), _integer_or_none(running.job.args, "draft_tokens")
    if name is None:
        return None
    if name == "ngram":
        return Drafter(method="ngram", draft_tokens=draft_tokens or 4)
    checkpoint = resolve(name)
    _check_format(engine, checkpoint)
    if checkpoint.drafts_for and model.name not in checkpoint.drafts_for:
        raise UnsupportedFeatureError(
            f"{checkpoint.name} drafts for {', '.join(checkpoint.drafts_for)}, not for {model.name}."
        )
    method = checkpoint.draft_method or "draft"
    file = await fetch(running, rig, connection, checkpoint)
    return Drafter(method=method, model=file, draft_tokens=draft_tokens or 2)


async def _port(rig: RigRow, connection: Connection, wanted: int | None) -> int:
    if wanted is None:
        code = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])"
        return int((await _python(rig, connection, code)).strip())
    if not await port_is_free(rig, connection, wanted):
        raise UsageError(
            f"Port {wanted} of {rig.name!r} is in use by another process. Leave the port out, and a free one is taken."
        )
    return wanted


async def port_is_free(rig: RigRow, connection: Connection, port: int) -> bool:
    code = (
        "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        f"try: s.bind(('127.0.0.1', {port})); print('free')\n"
        "except OSError: print('taken')"
    )
    return (await _python(rig, connection, code)).strip() == "free"


async def _python(rig: RigRow, connection: Connection, code: str) -> str:
    python = rig.facts.python.path if rig.facts.python else "python3"
    return (await connection.run([python, "-c", code])).check("looking at a port of the rig").text


def _integer(args: Mapping[str, object], name: str) -> int:
    value = _integer_or_none(args, name)
    if value is None:
        raise UsageError(f"{name} is missing.")
    return value


def _integer_or_none(args: Mapping[str, object], name: str) -> int | None:
    value = args.get(name)
    return value if isinstance(value, int) else None
