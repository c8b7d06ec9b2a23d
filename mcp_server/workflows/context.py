"""What every step of a job works with: the state, the rig of the job, and a way to say how far it is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from mcp_server.config import Config
from mcp_server.rows import Job, RigRow
from mcp_server.state import State, StateError
from rigs.connection import Connection
from rigs.errors import RigsError, UsageError
from rigs.host_keys import KnownHosts
from rigs.local import LocalConnection
from rigs.remote_job import JobState, RemoteJob


class JobCancelled(RigsError):  # noqa: N818 - it is no error, but the answer to a request
    """The user asked for the end of this job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    config: Config
    state: State


_current: list[WorkerContext] = []


def install(context: WorkerContext) -> None:
    """Set what the workflows of this process work with; called once, before the first of them."""
    _current[:] = [context]


class RunningJob:
    """The job in hand, for the steps of its workflow."""

    def __init__(self, job_id: str) -> None:
        self.config = _current[0].config
        self.state = _current[0].state
        self.job: Job = self.state.job(job_id)
        self.job_id = job_id

    @property
    def folder(self) -> Path:
        """Where this job's files lie on this machine."""
        return self.config.runs / self.job_id

    @property
    def log(self) -> Path:
        """The mirror of whatever the job runs on the rig."""
        return self.folder / "log"

    def rig(self) -> RigRow:
        if self.job.rig is None:
            raise UsageError(f"The job {self.job_id} names no rig.")
        return self.state.rig(self.job.rig)

    def argument(self, name: str) -> str | None:
        value = self.job.args.get(name)
        return str(value) if value is not None else None

    def connect(self) -> tuple[RigRow, Connection]:
        """Return the job's rig and the way to it; whoever asks closes it."""
        rig = self.rig()
        return rig, connect(rig, self.config)

    def say(self, message: str, *, done: int | None = None, total: int | None = None) -> None:
        """Tell the user what happens now; kept as an event. On a full disk the words are lost, and the job goes on."""
        with contextlib.suppress(StateError):
            self.state.set_progress(self.job_id, done=done, total=total, detail=message)
            self.state.add_event(self.job_id, message)

    def check_cancelled(self) -> None:
        """End the job here if that was asked for.

        Raises:
            JobCancelled: it was.
        """
        if self.state.cancel_requested(self.job_id):
            raise JobCancelled("Cancelled as asked.")

    async def watch(
        self, remote: RemoteJob, connection: Connection, on_poll: Callable[[], Awaitable[None]] | None = None
    ) -> JobState:
        """Follow a detached job to its end, its log mirrored here; cancel it when that is asked for.

        Raises:
            JobCancelled: after the job on the rig has ended.
        """
        began = time.monotonic()
        while True:
            # Cancelling is looked at before polling, so that a job that ended by itself is never called cancelled
            # when its end was seen; and a poll every second or two costs a small rig about 1 % of a core.
            if self.state.cancel_requested(self.job_id):
                state = await remote.cancel(grace_s=20)
                await self.mirror(remote.log_path, self.log, connection)
                if on_poll:
                    await on_poll()
                raise JobCancelled("Cancelled as asked.")
            state = await remote.poll()
            await self.mirror(remote.log_path, self.log, connection)
            if on_poll:
                await on_poll()
            if state.status != "running":
                return state
            elapsed_s = time.monotonic() - began
            await asyncio.sleep(0.1 if elapsed_s < 2 else 0.5 if elapsed_s < 30 else 1.0)

    async def end_what_it_started(self, connection: Connection) -> None:
        """End every detached job of this job on the rig, but an engine that is served: for a job that did not end well.

        Also what an earlier worker had started for it, since all of it lies in folders named by the job.
        """
        rig = self.rig()
        listed = await connection.run(["ls", f"{rig.rig_home}/jobs"])
        for name in listed.text.splitlines():
            folder = f"{rig.rig_home}/jobs/{name}"
            if name.startswith(f"{self.job_id}-") and not (rig.served and rig.served.job_folder == folder):
                await RemoteJob(connection, folder).cancel(grace_s=20)

    async def mirror(self, path: str, local: Path, connection: Connection) -> None:
        """Append what is new in a growing file of the rig to its copy here."""
        offset = _size(local)
        while chunk := await connection.read_from(path, offset):
            with local.open("ab") as file:
                file.write(chunk)
            offset += len(chunk)


def _size(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.stat().st_size if path.exists() else 0


def connect(rig: RigRow, config: Config) -> Connection:
    """Make the way to a rig; an SSH connection is opened by the first command."""
    if rig.address is None:
        return LocalConnection()
    from rigs.ssh import SshConnection

    return SshConnection(rig.address, KnownHosts(config.known_hosts, [Path("~/.ssh/known_hosts").expanduser()]))
