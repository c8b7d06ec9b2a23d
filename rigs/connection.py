"""The seam between us and a machine. Nothing above it knows whether a rig is local or behind SSH."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rigs.errors import CommandError


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    argv: tuple[str, ...]
    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    def check(self, doing: str = "") -> CommandResult:
        """Give this result back, if it ended with 0.

        Raises:
            CommandError: otherwise; `doing` says in words what was being done.
        """
        if self.exit_code:
            raise CommandError(self.argv, self.exit_code, self.stderr.decode("utf-8", "replace"), doing)
        return self


class Connection(Protocol):
    """Commands and files on one machine.

    Every method raises `UnreachableError` where the way to the machine fails, and nothing else of the transport's own.
    Words of `argv` arrive as they are: no shell of the machine ever reads them.
    """

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> CommandResult:
        """Run to the end. Exit codes are results, not errors; a command over its time is ended with its children.

        Raises:
            CommandError: the time was over (exit code None), or the program does not exist (127).
        """
        ...

    async def put(self, content: bytes | Path, path: str, *, mode: int = 0o644) -> None:
        """Write a whole file, making its folders; a reader sees the old file or the new one, never a part.

        Raises:
            RigFullError: no space left.
        """
        ...

    async def get(self, path: str, local: Path) -> None:
        """Fetch a whole file, making local folders; `local` appears only when complete.

        Raises:
            CommandError: no such file.
        """
        ...

    async def read_from(self, path: str, offset: int, limit: int = 1 << 20) -> bytes:
        """Up to `limit` bytes from `offset`; empty at the end, and where the file does not exist yet."""
        ...

    async def forward(self, port: int) -> int:
        """A port on this machine that reaches the rig's loopback `port` until `close`."""
        ...

    async def close(self) -> None:
        """Give up every channel. What was started detached goes on."""
        ...
