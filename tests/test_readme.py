"""The README says what is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.config import load
from tests.tool_table import table, with_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def test_the_table_of_tools_is_that_of_the_code() -> None:
    assert with_table(README) == README, "run `make docs`"
    assert table() in README
    assert len(re.findall(r"^\| `\w+` \|", README, re.MULTILINE)) == 19


def test_every_command_of_the_documents_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z -]+?)(?:\s{2,}|$)", README + CONTRIBUTING, re.MULTILINE):
        for name in target.split():
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), name
    for command in re.findall(r"^rigbench ([a-z]+)", README, re.MULTILINE):
        process = subprocess.run([sys.executable, "-m", "mcp_server", command, "--help"], capture_output=True)
        assert process.returncode == 0, command
    for line in re.findall(r"^rigbench (measure .*)", README, re.MULTILINE):
        words = line.split()
        options = {word for word in words if word.startswith("--")}
        text = subprocess.run(
            [sys.executable, "-m", "mcp_server", *words[:2], "--help"], capture_output=True, text=True
        ).stdout
        assert all(option in text for option in options), line


def test_every_variable_named_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "".join(path.read_text() for package in ("mcp_server", "rigs") for path in (ROOT / package).rglob("*.py"))
    for name in set(re.findall(r"\b(?:RIGBENCH|HF)_[A-Z_]+\b", README)):
        assert f'"{name}"' in source, name
    for name in ("RIGBENCH_IDLE_STOP_MIN", "RIGBENCH_WORKER_IDLE_MIN", "RIGBENCH_WAIT_CAP_S"):
        monkeypatch.delenv(name, raising=False)
    config = load()
    for name, value in (
        ("RIGBENCH_IDLE_STOP_MIN", config.idle_stop_min),
        ("RIGBENCH_WORKER_IDLE_MIN", config.worker_idle_min),
        ("RIGBENCH_WAIT_CAP_S", config.wait_cap_s),
    ):
        assert f"`{name}` ({value:g})" in README


def test_every_file_named_exists() -> None:
    names = re.findall(r"`((?:rigs|evals|mcp_server|tests)/[\w/.-]+)`", README + CONTRIBUTING)
    names += re.findall(r"\]\(([A-Z]+\.md)\)", README)
    assert len(names) > 10
    for name in names:
        assert (ROOT / name).exists(), name
