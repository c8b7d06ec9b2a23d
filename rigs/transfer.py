"""Bytes on their way to a disk: how far they are, and whether there is room for them."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

from rigs.errors import CheckpointError, RigFullError

FreeBytes = Callable[[Path], int]
"""How much a folder's disk still takes; a parameter, since a full disk is hard to come by."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class Progress:
    """Lines for people and logs, at most one a second: `NAME: download 1048576 of 98362432 bytes, 1.1 %, 34.2 MB/s`."""

    def __init__(
        self,
        name: str,
        write: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._write = write or sys.stderr.write
        self._clock = clock
        self._doing = ""
        self._total_bytes: int | None = None
        self._last_line_s = 0.0
        self._last_line_bytes = 0

    def say(self, text: str) -> None:
        """One line now."""
        self._write(f"{self._name}: {text}\n")

    def begin(self, doing: str, total_bytes: int | None, done_bytes: int = 0) -> None:
        """A transfer starts, or goes on where an earlier one was cut."""
        self._doing = doing
        self._total_bytes = total_bytes
        self._last_line_s = self._clock()
        self._last_line_bytes = done_bytes

    def at(self, done_bytes: int) -> None:
        """So far; prints where a second has passed, and at the end."""
        now_s = self._clock()
        elapsed_s = now_s - self._last_line_s
        if elapsed_s < 1.0 and done_bytes != self._total_bytes:
            return
        moved = done_bytes - self._last_line_bytes
        of_total = f" of {self._total_bytes}" if self._total_bytes else ""
        percent = f", {100 * done_bytes / self._total_bytes:.1f} %" if self._total_bytes else ""
        speed = f", {moved / elapsed_s / 1e6:.1f} MB/s" if elapsed_s > 0 else ""
        self.say(f"{self._doing} {done_bytes}{of_total} bytes{percent}{speed}")
        self._last_line_s, self._last_line_bytes = now_s, done_bytes


def require_room(folder: Path, needed_bytes: int, free: FreeBytes, what: str) -> None:
    """Better said before a download than at its end.

    Raises:
        RigFullError: naming what is needed and what is there.
    """
    free_now = free(folder)
    if free_now < needed_bytes:
        raise RigFullError(
            f"No room for {what}: {needed_bytes} more bytes are needed in {folder}, {free_now} are free. "
            "Free some, or choose another rig_home."
        )


@contextlib.contextmanager
def writing(path: Path, total_bytes: int | None, what: str) -> Generator[None]:
    """Translate what the disk says. A file that filled the disk is removed: other things need the room to end well.

    Raises:
        RigFullError: the disk, the quota or the file size limit is reached.
        CheckpointError: the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            had = path.stat().st_size if path.exists() else 0
            path.unlink(missing_ok=True)
            needed = f"{total_bytes} bytes are needed" if total_bytes else "its size is unknown"
            raise RigFullError(
                f"No space left for {what} in {path.parent} after {had} bytes; {needed}. Free some, then try again."
            ) from error
        raise CheckpointError(f"Cannot write {what} to {path}: {error.strerror or error}.") from error
