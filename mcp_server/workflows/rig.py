"""Attaching, looking at and letting go of a rig."""

from __future__ import annotations

from mcp_server.rows import RigRow, utc_now
from mcp_server.views import rig_view
from mcp_server.workflows.context import RunningJob, connect
from mcp_server.workflows.engine import end_engine
from rigs.connection import Connection
from rigs.errors import UnknownNameError, UsageError
from rigs.facts import RigFacts
from rigs.probe import probe

OURS = ("engines", "jobs", "models", "python", "runs", "source")
"""What we make below a rig's home. `purge` removes these; the home itself goes only when nothing else is in it."""


async def attach(running: RunningJob) -> dict[str, object]:
    """Look at the machine, then write the rig down; attaching it again renews its facts."""
    name, kind = str(running.job.args["name"]), str(running.job.args["kind"])
    now = utc_now()
    known = _known(running, name)
    rig_home = running.argument("rig_home") or (known.rig_home if known else running.config.rig_home)
    python = running.argument("python") or (known.python if known else None)
    new = RigRow(
        name=name,
        kind=kind,
        rig_home=rig_home,
        python=python,
        facts=RigFacts(),
        served=known.served if known else None,
        attached_at=known.attached_at if known else now,
        used_at=now,
    )
    connection = connect(new)
    try:
        rig_home = await _absolute(connection, rig_home)
        if known and (known.kind, known.rig_home) != (kind, rig_home):
            raise UsageError(
                f"A rig {name!r} is attached already ({known.kind}, home {known.rig_home}). "
                "Choose another name, or detach_rig it first."
            )
        running.say(f"looking at the machine (home {rig_home})")
        facts = await probe(connection, rig_home, python)
        for other in running.state.rigs():
            if other.name != name and other.kind == kind and _same_machine(other.facts, facts):
                raise UsageError(
                    f"This machine is attached already, as {other.name!r}. Two rigs on one machine would measure "
                    f"each other: use {other.name!r}, or detach_rig it first."
                )
        (await connection.run(["mkdir", "-p", "-m", "700", "--", rig_home])).check(f"making the rig home {rig_home}")
    finally:
        await connection.close()
    attached = new.model_copy(update={"rig_home": rig_home, "facts": facts})
    running.state.put_rig(attached)
    running.say(f"attached: {describe(facts)}")
    return rig_view(attached).model_dump(mode="json")


async def look(running: RunningJob) -> dict[str, object]:
    """Probe again and keep the new facts."""
    rig = running.rig()
    connection = connect(rig)
    try:
        facts = await probe(connection, rig.rig_home, rig.python)
    finally:
        await connection.close()
    probed = rig.model_copy(update={"facts": facts, "used_at": utc_now()})
    running.state.put_rig(probed)
    running.say(describe(facts))
    return rig_view(probed).model_dump(mode="json")


async def detach(running: RunningJob) -> dict[str, object]:
    """Stop what we started there and forget the rig; its files stay unless `purge`."""
    rig = running.rig()
    connection = connect(rig)
    try:
        if rig.served:
            await end_engine(running, rig, connection)
        if running.job.args.get("purge"):
            running.say(f"removing our folders below {rig.rig_home}")
            folders = [f"{rig.rig_home}/{folder}" for folder in OURS]
            (await connection.run(["rm", "-rf", "--", *folders], timeout_s=600)).check("removing our folders")
            await connection.run(["rmdir", "--", rig.rig_home])
    finally:
        await connection.close()
    running.state.remove_rig(rig.name)
    running.say("detached; nothing of ours runs there")
    return {"rig": rig.name}


def describe(facts: RigFacts) -> str:
    """Say in one line what machine it is."""
    parts = [
        ", ".join(accelerator.name for accelerator in facts.accelerators) or "no accelerator",
        f"{facts.cpu_count or '?'} x {facts.cpu_model or facts.machine or 'unknown CPU'}",
        f"{facts.memory_mib // 1024} GiB" if facts.memory_mib else "memory unknown",
        facts.os_release or facts.os or "unknown system",
    ]
    return "; ".join(parts)


def _known(running: RunningJob, name: str) -> RigRow | None:
    try:
        return running.state.rig(name)
    except UnknownNameError:
        return None


def _same_machine(one: RigFacts, other: RigFacts) -> bool:
    return one.boot_id is not None and (one.boot_id, one.hostname) == (other.boot_id, other.hostname)


async def _absolute(connection: Connection, path: str) -> str:
    if path == "~" or path.startswith("~/"):
        home = (await connection.run(["sh", "-c", 'printf %s "$HOME"'])).check("asking for the home folder").text
        path = home + path[1:]
    if not path.startswith("/") or "\n" in path or "\0" in path:
        raise UsageError(f"The rig home {path!r} is no absolute path. Give one, e.g. ~/.rigbench.")
    return path.rstrip("/") or "/"
