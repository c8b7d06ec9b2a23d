"""Bringing our own code to a rig, once: an environment with the pinned packages, and `rigs` and `evals` beside it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from rigs.facts import RigFacts
from rigs.serving import Step

SHIPPED = ("rigs", "evals")


@dataclass(frozen=True, slots=True, kw_only=True)
class RigPython:
    """How our modules are run on the rig: `[python, "-m", "evals", ...]` with `env`."""

    python: str
    env: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparePlan:
    """Two folders named by what lies in them: equal code is brought once, a new version lies beside the old."""

    key: str
    environment: str
    source: str
    files: dict[str, bytes]
    steps: tuple[Step, ...]
    ready_paths: tuple[str, ...]
    """All of them exist once the rig is prepared."""

    @property
    def rig_python(self) -> RigPython:
        return RigPython(
            python=f"{self.environment}/bin/python", env={"PYTHONPATH": self.source, "PYTHONDONTWRITEBYTECODE": "1"}
        )


def plan_prepare(facts: RigFacts, rig_home: str) -> PreparePlan:
    """Say what makes the rig ready for our modules; pure, but for reading our own files."""
    lock = files("rigs").joinpath("rig-requirements.lock").read_bytes()
    archive = _archive()
    lock_key = hashlib.sha256(lock).hexdigest()[:12]
    source_key = hashlib.sha256(archive).hexdigest()[:12]
    environment = f"{rig_home}/python/{lock_key}"
    source = f"{rig_home}/source/{source_key}"
    python = facts.python.path if facts.python else "python3"
    return PreparePlan(
        key=f"{lock_key}-{source_key}",
        environment=environment,
        source=source,
        files={f"{rig_home}/python/{lock_key}.lock": lock, f"{rig_home}/source/{source_key}.tar": archive},
        steps=(
            Step(
                name="make a virtual environment and install the pinned packages",
                argv=("sh", "-c", _INSTALL, "sh", python, environment, f"{rig_home}/python/{lock_key}.lock"),
            ),
            Step(
                name="unpack rigbench",
                argv=("sh", "-c", _UNPACK, "sh", f"{rig_home}/source/{source_key}.tar", source),
            ),
        ),
        ready_paths=(f"{environment}/.ready", f"{source}/.ready"),
    )


_INSTALL = """\
[ -f "$2/.ready" ] && exit 0
"$1" -m venv --clear "$2" || exit 1
set -- "$1" "$2" "$3" --disable-pip-version-check --no-input --require-hashes --only-binary :all:
python=$2/bin/python lock=$3 ready=$2/.ready
shift 3
"$python" -m pip install "$@" -r "$lock" || exit 1
: >"$ready"
"""

_UNPACK = """\
[ -f "$2/.ready" ] && exit 0
rm -rf "$2.part" "$2" && mkdir -p "$2.part" && tar -xf "$1" -C "$2.part" && : >"$2.part/.ready" && mv "$2.part" "$2"
"""


def _archive() -> bytes:
    """Pack the modules that run on a rig; the same bytes for the same code."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for package in SHIPPED:
            for path, content in sorted(_walk(files(package), package)):
                member = tarfile.TarInfo(path)
                member.size = len(content)
                member.mode = 0o644
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _walk(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__":
                found += _walk(entry, f"{path}/{entry.name}")
        elif not entry.name.endswith(".pyc"):
            found.append((f"{path}/{entry.name}", entry.read_bytes()))
    return found
