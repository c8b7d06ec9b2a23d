"""The import directions between packages, and what the server must not load at its start."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"rigs", "provisioning", "evals", "mcp_server"}
MAY_IMPORT: dict[str, set[str]] = {
    "rigs": {"rigs"},
    "provisioning": {"provisioning", "rigs"},
    "evals": {"evals", "rigs.errors", "rigs.serving", "rigs.facts"},
    "mcp_server": OURS,
}
HEAVY = {
    "dbos",
    "boto3",
    "google",
    "paramiko",
    "datasets",
    "numpy",
    "matplotlib",
    "PIL",
    "jinja2",
    "rich",
    "httptools",
    "gguf",
}


def breaches(package: str, source: str) -> list[str]:
    """Modules of ours that `source`, lying in `package`, imports against the rules."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                found.append("relative import")
                continue
            names = [node.module or ""]
        for name in names:
            if name.split(".")[0] not in OURS:
                continue
            if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in MAY_IMPORT[package]):
                found.append(name)
    return found


@pytest.mark.parametrize("package", sorted(OURS))
def test_imports_go_one_way(package: str) -> None:
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in (ROOT / package).rglob("*.py")
        if (found := breaches(package, path.read_text()))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("rigs", "import evals.report"),
        ("provisioning", "from evals import speed"),
        ("evals", "from rigs.connection import Connection"),
        ("evals", "def f():\n    import provisioning.offers"),
        ("rigs", "from . import facts"),
    ],
)
def test_a_planted_breach_is_found(package: str, source: str) -> None:
    assert breaches(package, source)


def test_a_package_says_what_it_is_and_nothing_else() -> None:
    for path in [p for package in OURS for p in (ROOT / package).rglob("__init__.py")]:
        body = ast.parse(path.read_text()).body
        assert len(body) == 1, f"{path} holds more than its docstring"


def test_the_server_starts_without_heavy_libraries() -> None:
    code = "import sys, mcp_server.server; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[0] for name in loaded} & HEAVY == set()


def test_the_worker_never_loads_what_draws() -> None:
    code = "import sys, mcp_server.worker; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[0] for name in loaded} & {"matplotlib", "numpy", "PIL", "jinja2"} == set()


def test_what_runs_on_a_rig_needs_few_packages() -> None:
    """Only what rig-requirements.lock pins, so that a rig never needs a cloud library, MCP or a database."""
    code = "import sys, evals.__main__, rigs.fetch; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[0] for name in loaded} & {
        *("mcp", "sqlalchemy", "dbos", "platformdirs", "matplotlib", "jinja2")
    } == set()
