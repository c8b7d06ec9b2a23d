"""The machine we run on, as a rig."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from rigs.connection import CommandResult
from rigs.errors import CommandError, RemoteError, RigFullError


class LocalConnection:
    """`Connection` to this machine: no shell, no network."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> CommandResult:
        try:
            # A session of its own, so that a command over its time is ended with its children.
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **(env or {})},
                cwd="/",
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise CommandError(argv, 127, str(error)) from error
        try:
            async with asyncio.timeout(timeout_s):
                stdout, stderr = await process.communicate(stdin)
        except TimeoutError as error:
            raise CommandError(argv, None, f"It took longer than {timeout_s:g} s and was ended.") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        assert process.returncode is not None
        return CommandResult(argv=tuple(argv), exit_code=process.returncode, stdout=stdout, stderr=stderr)

    async def put(self, content: bytes | Path, path: str, *, mode: int = 0o644) -> None:
        await asyncio.to_thread(_put, content, Path(path), mode)

    async def get(self, path: str, local: Path) -> None:
        if not await asyncio.to_thread(Path(path).is_file):
            raise CommandError(["get", path], 1, f"No such file: {path}")
        await asyncio.to_thread(_put, Path(path), local, 0o644)

    async def read_from(self, path: str, offset: int, limit: int = 1 << 20) -> bytes:
        return await asyncio.to_thread(_read_from, path, offset, limit)

    async def forward(self, port: int) -> int:
        return port

    async def close(self) -> None:
        pass


def _put(content: bytes | Path, path: Path, mode: int) -> None:
    with _file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.")
        try:
            with os.fdopen(handle, "wb") as file:
                if isinstance(content, Path):
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, file, 1 << 20)
                else:
                    file.write(content)
            Path(temporary).chmod(mode)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _read_from(path: str, offset: int, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return b""


@contextlib.contextmanager
def _file_errors(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RigFullError(f"No space left for {path}. Free some, then try again.") from error
        raise RemoteError(f"Cannot write {path}: {error.strerror}. Check its folder's owner and mode.") from error
