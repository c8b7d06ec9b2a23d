"""Looking at, attaching and letting go of rigs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field

from mcp_server.app import App, app_of
from mcp_server.edge import tool
from mcp_server.views import JobView, RigView, job_view, rig_view
from rigs.errors import RigsError, UsageError
from rigs.host_keys import parse_address

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")

RigName = Annotated[str, Field(description="As list_rigs shows it.")]


class RigList(BaseModel):
    rigs: list[RigView]
    next_step: str = ""


@tool("List rigs", read_only=True)
def list_rigs(ctx: Context[App]) -> RigList:
    """List the attached rigs: accelerators, memory, and what each serves now."""
    rigs = [rig_view(rig) for rig in app_of(ctx).state.rigs()]
    return RigList(rigs=rigs, next_step="" if rigs else "attach_rig(name='local') adds this machine")


@tool("Attach a rig", idempotent=True)
def attach_rig(
    ctx: Context[App],
    name: Annotated[str, Field(description="Your name for it, e.g. 'local' or 'desk'.")] = "local",
    address: Annotated[
        str | None, Field(description="user@host or user@host:port, by SSH; null: the machine this server runs on.")
    ] = None,
    key: Annotated[
        str | None, Field(description="Path of the private key on this machine; needed with address.")
    ] = None,
    fingerprint: Annotated[
        str | None, Field(description="SHA256:... of the host's key, for a host that known_hosts does not name.")
    ] = None,
    jump: Annotated[str | None, Field(description="user@host[:port] to go by way of; same key.")] = None,
    rig_home: Annotated[str | None, Field(description="Our folder there; default ~/.rigbench.")] = None,
    python: Annotated[str | None, Field(description="Python >= 3.11 there; default: the newest found.")] = None,
) -> JobView:
    """Attach a machine you own, so that engines can be served and measured on it. Probes it; installs nothing yet.

    Attaching it again renews its facts. Costs nothing. Take no fingerprint on trust: compare it with the machine's own.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"The rig name {name!r} cannot be used. Take lower-case letters, digits, '.', '_' and '-', at most 40."
        )
    args = {
        "name": name,
        "kind": "ssh" if address else "local",
        "address": _address(address, key, fingerprint, jump),
        "rig_home": rig_home,
        "python": python,
    }
    return finished_or_raise(app_of(ctx), "attach", name, args)


@tool("Probe a rig", idempotent=True)
def probe_rig(ctx: Context[App], rig: RigName) -> JobView:
    """Look at a rig again: driver, memory, disk, Python. Use it after a change there."""
    app = app_of(ctx)
    app.state.rig(rig)
    return finished_or_raise(app, "probe", rig, {})


@tool("Detach a rig", destructive=True, idempotent=True)
def detach_rig(
    ctx: Context[App],
    rig: RigName,
    purge: Annotated[bool, Field(description="Also delete our folders there: engines, models, runs.")] = False,
) -> JobView:
    """Stop what we started on a rig and forget it. Its files stay unless purge; reports on this machine always stay."""
    app = app_of(ctx)
    app.state.rig(rig)
    return finished_or_raise(app, "detach", rig, {"purge": purge})


def finished_or_raise(app: App, kind: str, rig: str | None, args: Mapping[str, object]) -> JobView:
    """Do a quick job; its failure is the tool's.

    Raises:
        RigsError: the job failed while we waited.
    """
    view = job_view(app.submit(kind, rig, args, quick=True))
    if view.error:
        raise RigsError(view.error)
    return view


def _address(
    address: str | None, key: str | None, fingerprint: str | None, jump: str | None
) -> dict[str, object] | None:
    if address is None:
        if key or fingerprint or jump:
            raise UsageError("key, fingerprint and jump go with address, as user@host.")
        return None
    if key is None:
        raise UsageError(
            f"Name the private key for {address}: key='~/.ssh/id_ed25519', say. None is guessed and no agent is asked."
        )
    path = str(Path(key).expanduser().absolute())
    jumps = (parse_address(jump, key=path),) if jump else ()
    parsed = parse_address(address, key=path, fingerprint=fingerprint).model_copy(update={"jumps": jumps})
    return parsed.model_dump(mode="json")
