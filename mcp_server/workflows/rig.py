"""Attaching, looking at and letting go of a rig."""

from __future__ import annotations

from mcp_server.rows import RigRow, utc_now
from mcp_server.views import rig_view
from mcp_server.workflows.context import RunningJob, connect
from mcp_server.workflows.engine import end_engine
from rigs.connection import Connection
from rigs.errors import UnknownNameError, UsageError
from rigs.facts import RigFacts
from rigs.host_keys import SshAddress
from rigs.probe import probe

OURS = ("engines", "jobs", "models", "python", "runs", "source", "wheels")
"""What we make below a rig's home. `purge` removes these; the home itself goes only when nothing else is in it."""


FOREIGN, TAKEN = 17, 18
MARKER = ".rigbench"
"""A file in every rig home of ours; it names the installation that works there, or nobody."""
NOBODY = "-"

_CLAIM = f"""\
[ -d "$1" ] || mkdir -p -m 700 -- "$1" || exit 1
cd "$1" || exit 1
if [ -e {MARKER} ]; then
    read -r owner <{MARKER}
    [ "$owner" = {NOBODY} ] || [ "$owner" = "$2" ] || exit {TAKEN}
else
    [ -z "$(ls -A)" ] || exit {FOREIGN}
fi
echo "$2" >{MARKER}
"""


async def attach(running: RunningJob) -> dict[str, object]:
    """Look at the machine, then write the rig down; attaching it again renews its facts."""
    name, kind = str(running.job.args["name"]), str(running.job.args["kind"])
    now = utc_now()
    known = _known(running, name)
    default_home = running.config.rig_home if kind == "local" else "~/.rigbench"
    rig_home = running.argument("rig_home") or (known.rig_home if known else default_home)
    python = running.argument("python") or (known.python if known else None)
    given = running.job.args.get("address")
    address = SshAddress.model_validate(given) if given else None
    new = RigRow(
        name=name,
        kind=kind,
        address=address,
        rig_home=rig_home,
        python=python,
        facts=RigFacts(),
        served=known.served if known else None,
        attached_at=known.attached_at if known else now,
        used_at=now,
    )
    connection = connect(new, running.config)
    try:
        rig_home = await _absolute(connection, rig_home)
        if known and (known.kind, known.rig_home, _host(known.address)) != (kind, rig_home, _host(address)):
            raise UsageError(
                f"A rig {name!r} is attached already ({known.address or known.kind}, home {known.rig_home}). "
                "Choose another name, or detach_rig it first."
            )
        running.say(f"looking at the machine (home {rig_home})")
        facts = await probe(connection, rig_home, python)
        if python and (facts.python is None or facts.python.path != python):
            raise UsageError(
                f"{python} is no Python >= 3.11 that runs there. Leave python out, and the newest is taken."
            )
        await _claim(connection, rig_home, running.state.installation)
    finally:
        await connection.close()
    attached = new.model_copy(update={"rig_home": rig_home, "facts": facts})
    running.state.add_rig(attached, lambda other: _in_the_way(other, facts))
    running.say(f"attached: {describe(facts)}")
    return rig_view(attached).model_dump(mode="json")


async def look(running: RunningJob) -> dict[str, object]:
    """Probe again and keep the new facts."""
    rig = running.rig()
    connection = connect(rig, running.config)
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
    connection = connect(rig, running.config)
    try:
        if rig.served:
            await end_engine(running, rig, connection)
        if running.job.args.get("purge"):
            running.say(f"removing our folders below {rig.rig_home}")
            folders = [f"{rig.rig_home}/{folder}" for folder in OURS]
            folders.append(f"{rig.rig_home}/{MARKER}")
            (await connection.run(["rm", "-rf", "--", *folders], timeout_s=600)).check("removing our folders")
            await connection.run(["rmdir", "--", rig.rig_home])
        else:
            await connection.put(f"{NOBODY}\n".encode(), f"{rig.rig_home}/{MARKER}")
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


def _in_the_way(other: RigRow, facts: RigFacts) -> str | None:
    if not _same_machine(other.facts, facts):
        return None
    return (
        f"This machine is attached already, as {other.name!r}. Two rigs on one machine would measure each other: "
        f"use {other.name!r}, or detach_rig it first."
    )


async def _claim(connection: Connection, rig_home: str, owner: str) -> None:
    """Make the rig's home, or take one that is empty or was let go: it is then ours, to fill and to purge.

    Raises:
        UsageError: it holds files of somebody else, another rigbench works in it, or it is no folder.
    """
    made = await connection.run(["sh", "-c", _CLAIM, "sh", rig_home, owner])
    if made.exit_code == TAKEN:
        raise UsageError(
            f"Another rigbench (another RIGBENCH_HOME) works in {rig_home}. Choose another rig_home, or detach the rig "
            f"there. If that one is gone for good, delete the file {rig_home}/{MARKER}."
        )
    if made.exit_code == FOREIGN:
        raise UsageError(
            f"The folder {rig_home} holds other files. Choose an empty or a new one as rig_home, since rigbench "
            "makes folders in it and deletes them at a purge."
        )
    if made.exit_code:
        raise UsageError(f"Cannot use {rig_home} as rig_home: {made.stderr.decode('utf-8', 'replace').strip()[-300:]}.")


def _host(address: SshAddress | None) -> str | None:
    return str(address) if address else None


def _same_machine(one: RigFacts, other: RigFacts) -> bool:
    return one.boot_id is not None and (one.boot_id, one.hostname) == (other.boot_id, other.hostname)


async def _absolute(connection: Connection, path: str) -> str:
    if path == "~" or path.startswith("~/"):
        home = (await connection.run(["sh", "-c", 'printf %s "$HOME"'])).check("asking for the home folder").text
        if not home.startswith("/"):
            raise UsageError("The user has no home folder there (HOME is not set). Give rig_home as an absolute path.")
        path = home + path[1:]
    if not path.startswith("/") or "\n" in path or "\0" in path:
        raise UsageError(f"The rig home {path!r} is no absolute path. Give one, e.g. ~/.rigbench.")
    return path.rstrip("/") or "/"
