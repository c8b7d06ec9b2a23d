"""What people install: the wheel's contents and the two lock files."""

from __future__ import annotations

import ast
import email
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from mcp_server.version import VERSION

ROOT = Path(__file__).parents[1]
PACKAGES = ("rigs", "provisioning", "evals", "mcp_server")
ON_THE_RIG = ("rigs", "evals")
ELSEWHERE = {
    # Pages and charts are drawn on the machine of the worker, in a process of their own.
    "matplotlib": {"evals/render/canvas.py", "evals/render/figures.py"},
    "jinja2": {"evals/render/page.py"},
    "markupsafe": {"evals/render/page.py"},
    "xllamacpp": {"rigs/engines/_xllamacpp_server.py"},  # it runs in the engine's own environment
    "paramiko": {"rigs/ssh.py", "rigs/host_keys.py"},  # they reach a rig, and run where the worker does
}
"""Third-party modules that the rig's lock rightly lacks, and the files that may import them."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    # The build backend itself, without pip: nothing is fetched, and nothing is written beside the sources.
    code = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(folder / built.stdout.split()[-1]) as file:
        yield file


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def text_of(wheel: zipfile.ZipFile, ending: str) -> str:
    (name,) = (name for name in wheel.namelist() if name.endswith(ending))
    return wheel.read(name).decode()


def test_the_wheel_holds_every_file_of_our_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if tracked.returncode:
        pytest.skip("not in a git checkout, so that nothing tells which files are ours")
    ours = {name for name in tracked.stdout.splitlines() if (ROOT / name).exists()}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == ours


@pytest.mark.parametrize(
    "path",
    [
        *("rigs/runner.sh", "rigs/probe.sh", "rigs/rig-requirements.lock", "rigs/engines/_xllamacpp_server.py"),
        *("evals/report.schema.json", *(f"{package}/py.typed" for package in PACKAGES)),
    ],
)
def test_the_wheel_holds_the_data_that_the_code_reads(wheel: zipfile.ZipFile, path: str) -> None:
    assert wheel.read(path) == (ROOT / path).read_bytes()


def test_the_rigs_lock_lies_in_the_wheel_as_a_file_and_not_as_a_link(wheel: zipfile.ZipFile) -> None:
    assert wheel.read("rigs/rig-requirements.lock") == (ROOT / "rig-requirements.lock").read_bytes()
    mode = wheel.getinfo("rigs/rig-requirements.lock").external_attr >> 16
    assert mode & 0o170000 in (0, 0o100000)


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile, project: dict[str, Any]) -> None:
    metadata = email.message_from_string(text_of(wheel, ".dist-info/METADATA"))
    assert (metadata["Name"], metadata["Version"]) == ("rigbench", project["version"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    extras = project["optional-dependencies"]
    optional = sum(map(len, extras.values()))
    assert len(metadata.get_all("Requires-Dist", [])) == len(project["dependencies"]) + optional
    assert set(metadata.get_all("Provides-Extra", [])) == set(extras)
    assert "Apache License" in text_of(wheel, "licenses/LICENSE")
    assert text_of(wheel, "entry_points.txt").split() == ["[console_scripts]", "rigbench", "=", "mcp_server.cli:main"]
    assert text_of(wheel, ".dist-info/WHEEL").count("Tag: py3-none-any") == 1


def test_the_code_knows_its_version(project: dict[str, Any]) -> None:
    assert project["version"] == VERSION


PIN = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)(?: ; ([^\\]+?))? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def pins(text: str) -> dict[str, set[str]]:
    """Name -> its versions (several, where markers choose); every line must be a pin, one of its hashes, or a comment.

    Raises:
        ValueError: a line that is none of them, or a pin without a hash.
    """
    found: dict[str, set[str]] = {}
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    expected = "pin"
    for line in lines:
        if (pin := PIN.fullmatch(line)) and expected == "pin":
            found.setdefault(normal(pin[1]), set()).add(pin[2])
            expected = "hash"
        elif (item := HASH.fullmatch(line)) and expected == "hash":
            expected = "hash" if item[1] else "pin"
        else:
            raise ValueError(f"Where a {expected} is expected: {line!r}")
    if expected != "pin":
        raise ValueError(f"It ends where a {expected} is expected.")
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def lock(name: str) -> dict[str, set[str]]:
    return pins((ROOT / name).read_text())


@pytest.mark.parametrize("name", ["requirements.lock", "rig-requirements.lock"])
def test_every_line_of_a_lock_is_pinned_with_hashes_and_names_no_index(name: str) -> None:
    assert lock(name)
    text = (ROOT / name).read_text()
    for word in ("://", "--index", "--extra-index", "--find-links", "--trusted-host", " @ "):
        assert word not in text


@pytest.mark.parametrize(
    "text",
    [
        "httpx==1.0\n",
        "httpx==1.0 \\\n",
        "httpx>=1.0 \\\n    --hash=sha256:" + "a" * 64,
        "httpx==1.0 \\\n    --hash=md5:" + "a" * 32,
        "httpx==1.0 \\\n    --hash=sha256:" + "a" * 64 + " \\\n",
        "--index-url https://example.org/simple\n",
        "-e .\n",
        "httpx @ https://example.org/httpx.whl\n",
    ],
)
def test_a_loose_line_is_found(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        pins(text)


def test_a_rig_gets_the_versions_that_we_test_with() -> None:
    all_of_them, rig = lock("requirements.lock"), lock("rig-requirements.lock")
    assert {name: versions for name, versions in rig.items() if all_of_them.get(name) != versions} == {}
    assert len(rig) < len(all_of_them) / 2


def test_the_lock_holds_every_dependency_that_is_declared(project: dict[str, Any]) -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    declared = [*project["dependencies"], *groups["dev"]]
    names = {normal(re.split(r"[\s\[<>=!;~]", item, maxsplit=1)[0]) for item in declared}
    assert names - set(lock("requirements.lock")) == set()


def third_party(source: str) -> set[str]:
    """Top-level modules that a module imports, anywhere in it, and that neither Python nor we bring."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - set(PACKAGES)


def test_what_runs_on_a_rig_imports_only_what_its_lock_brings() -> None:
    brought = set(lock("rig-requirements.lock"))
    distributions = packages_distributions()
    importers: dict[str, set[str]] = {}
    for package in ON_THE_RIG:
        for path in (ROOT / package).rglob("*.py"):
            for module in third_party(path.read_text()):
                importers.setdefault(module, set()).add(str(path.relative_to(ROOT)))
    assert {"httpx", "pydantic"} <= importers.keys()
    uncovered = {
        module: files
        for module, files in importers.items()
        if not {normal(name) for name in distributions.get(module, [module])} & brought
    }
    assert {module: files - ELSEWHERE.get(module, set()) for module, files in uncovered.items()} == {
        module: set[str]() for module in uncovered
    }
    assert "xllamacpp" in uncovered


def test_what_runs_on_a_rig_loads_nothing_that_its_lock_lacks() -> None:
    code = "import sys, evals.__main__, rigs.fetch; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {name.partition(".")[0] for name in loaded.stdout.split()} & ELSEWHERE.keys() == set()


@pytest.mark.parametrize(
    "source",
    [
        "import numpy",
        "from numpy.random import default_rng",
        "def f():\n    try:\n        import numpy as np\n    except ImportError: ...",
    ],
)
def test_an_import_is_found_wherever_it_stands(source: str) -> None:
    assert third_party(source) == {"numpy"}
    assert third_party("import os.path, rigs.errors\nfrom evals import report\nfrom . import x") == set()
