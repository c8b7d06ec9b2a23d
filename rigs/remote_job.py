"""A detached command on a rig, written once over `Connection`: it outlives us, and is found again by its folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from rigs.connection import Connection
from rigs.errors import RigFullError
from rigs.serving import Step

_RUN = 'if [ -f "$1/runner.sh" ]; then exec sh "$1/runner.sh" "$2" "$1"; else echo absent; fi'

JobStatus = Literal["absent", "running", "exited", "lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """`lost`: it ended without an exit code (killed, rebooted), and nothing of it runs any more."""

    status: JobStatus
    pid: int | None = None
    exit_code: int | None = None

    @property
    def was_killed(self) -> bool:
        """Whether it did not end by itself: lost, or ended by a signal, which shells tell as a code above 128."""
        return self.status == "lost" or (self.exit_code or 0) > 128


class RemoteJob:
    """One job in one folder of the rig.

    Starting is idempotent by the folder: of any number of starters one wins, before or after a restart of ours.
    """

    def __init__(self, connection: Connection, folder: str) -> None:
        self.folder = folder
        self._connection = connection

    @property
    def log_path(self) -> str:
        return f"{self.folder}/log"

    async def start_or_attach(
        self, steps: Sequence[Step], *, cwd: str = "/", again_if_killed: bool = False
    ) -> JobState:
        """Start the steps, one after the other until one fails, unless the job was started before.

        Raises:
            RigFullError: no space for the job's files.
        """
        state = await self.poll()
        if state.status == "absent" or (state.was_killed and again_if_killed):
            await self._connection.put(files("rigs").joinpath("runner.sh").read_bytes(), f"{self.folder}/runner.sh")
            await self._connection.put(_script(steps, cwd).encode(), f"{self.folder}/cmd", mode=0o600)
            state = await self._runner("again" if again_if_killed else "start")
        return state

    async def poll(self) -> JobState:
        return await self._runner("poll")

    async def cancel(self, grace_s: int = 10) -> JobState:
        """End the whole process group: TERM, then KILL after `grace_s`. A job that is not there stays absent."""
        return await self._runner("cancel", env={"GRACE_S": str(grace_s)}, timeout_s=grace_s + 30)

    async def read_log(self, offset: int = 0, limit: int = 1 << 20) -> bytes:
        return await self._connection.read_from(self.log_path, offset, limit)

    async def log_tail(self, limit: int = 8192) -> str:
        """Return the end of the log, for saying why a job failed."""
        result = await self._connection.run(["tail", "-c", str(limit), "--", self.log_path])
        return result.text

    async def _runner(self, verb: str, *, env: dict[str, str] | None = None, timeout_s: float = 60.0) -> JobState:
        argv = ["sh", "-c", _RUN, "sh", self.folder, verb]
        result = await self._connection.run(argv, env=env, timeout_s=timeout_s)
        if b"No space left" in result.stderr:
            raise RigFullError(f"No space left on the rig for the job in {self.folder}. Free some, then try again.")
        words = result.check(f"{verb} the job in {self.folder}").text.split()
        match words:
            case ["running", pid]:
                return JobState(status="running", pid=int(pid))
            case ["exited", code]:
                return JobState(status="exited", exit_code=int(code))
            case ["lost"]:
                return JobState(status="lost")
            case _:
                return JobState(status="absent")


def _script(steps: Sequence[Step], cwd: str) -> str:
    """Every word quoted: names that carry shell characters arrive as they are."""
    lines = [f"cd {shlex.quote(cwd)} || exit 126"]
    for number, step in enumerate(steps):
        if len(steps) > 1:
            lines.append(f"echo {shlex.quote(f'== {step.name} ({number + 1}/{len(steps)})')}")
        assignments = [f"{name}={value}" for name, value in step.env.items()]
        command = shlex.join(["env", *assignments, *step.argv] if assignments else step.argv)
        lines.append(f"exec {command}" if number == len(steps) - 1 else f"{command} || exit $?")
    return "\n".join(lines) + "\n"
