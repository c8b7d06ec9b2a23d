"""The sha256 of big files, computed once: the result is kept beside them until the file changes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rigs.facts import Border

_CHUNK = 1 << 22


class KnownHash(Border):
    """What was computed for a file, and by what we notice that it is another one now."""

    sha256: str
    size_bytes: int
    mtime_ns: int
    ctime_ns: int = 0
    """Nobody can set it back: a file that was changed in place and dated as before is hashed again."""
    inode: int
    revision: str | None = None
    """The hub's commit it was fetched from."""


_KNOWN = TypeAdapter(dict[str, KnownHash])


class FileHashes:
    """Kept in `<folder>/.hashes.json`, shared by every process that fetches into that folder."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / ".hashes.json"
        self._lock = folder / ".hashes.lock"

    def known(self, path: Path) -> KnownHash | None:
        """What is on record for this very file; None where it is new or changed."""
        entry = self._read().get(str(path))
        if entry is None:
            return None
        facts = path.stat()
        same = (entry.size_bytes, entry.mtime_ns, entry.ctime_ns, entry.inode) == (
            facts.st_size,
            facts.st_mtime_ns,
            facts.st_ctime_ns,
            facts.st_ino,
        )
        return entry if same else None

    def of(self, path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> KnownHash:
        """The file's hash, from the record or computed now; `on_bytes` hears how far the reading is."""
        return self.known(path) or self.keep(path, sha256_of(path, on_bytes))

    def keep(self, path: Path, sha256: str, *, revision: str | None = None) -> KnownHash:
        facts = path.stat()
        entry = KnownHash(
            sha256=sha256,
            size_bytes=facts.st_size,
            mtime_ns=facts.st_mtime_ns,
            ctime_ns=facts.st_ctime_ns,
            inode=facts.st_ino,
            revision=revision,
        )
        with exclusive(self._lock):
            write_whole(self._file, _KNOWN.dump_json(self._read() | {str(path): entry}))
        return entry

    def _read(self) -> dict[str, KnownHash]:
        try:
            return _KNOWN.validate_json(self._file.read_bytes())
        except (FileNotFoundError, ValidationError):
            return {}  # a record that is lost or damaged costs one more reading of the files, nothing else


def sha256_of(path: Path, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
    return digest.hexdigest()


@contextlib.contextmanager
def exclusive(lock: Path, on_wait: Callable[[], None] = lambda: None) -> Generator[None]:
    """Hold the lock; it ends with the process, however that ends. `on_wait` is called once if another holds it.

    The lock's file stays: whoever removed it could let two in.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_whole(path: Path, content: bytes) -> None:
    """A reader sees the old content or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
