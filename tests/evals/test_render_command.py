"""`python -m evals.render`: the drawing process, as the worker and people start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.evals.pages import DRAFTER, speed, sweep


@pytest.fixture(scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the drawing library keeps its index of fonts; made once a process."""
    return tmp_path_factory.mktemp("fonts")


def run(fonts: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MPLCONFIGDIR": str(fonts), "PYTHONWARNINGS": "error"}
    argv = [sys.executable, "-m", "evals.render", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, env=environment)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(speed(drafter=DRAFTER).model_dump_json())
    return path


def test_page_and_charts_are_written_and_named_on_stdout(tmp_path: Path, report: Path, fonts: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(speed().model_dump_json())
    done = run(fonts, report, "--against", other, "--html", tmp_path / "a/page.html", "--png", tmp_path / "b")
    assert (done.returncode, done.stderr) == (0, "")
    written = [Path(line) for line in done.stdout.splitlines()]
    assert [str(path.relative_to(tmp_path)) for path in written] == ["a/page.html", "b/speed.png", "b/acceptance.png"]
    assert written[0].read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["a", "b", "page.html", "speed.png", "acceptance.png", "report.json", "other.json"]
    ), "nothing half-written is left"


def test_what_cannot_be_drawn_is_said_in_words(tmp_path: Path, report: Path, fonts: Path) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"schema_version": 7}')
    unlike = tmp_path / "unlike.json"
    unlike.write_text(sweep().model_dump_json())
    page = tmp_path / "page.html"
    for arguments, words in (
        ((tmp_path / "none.json", "--html", page), "Cannot read the report"),
        ((damaged, "--html", page), "schema_version: Input should be 1"),
        ((report, "--against", unlike, "--html", page), "differ in their kind (speed and sweep)"),
        ((report,), "Give --html FILE, --png FOLDER or both."),
    ):
        done = run(fonts, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert not page.exists()


def test_a_place_that_cannot_be_written_is_said_in_words(report: Path, fonts: Path) -> None:
    done = run(fonts, report, "--html", report / "page.html")
    assert done.returncode == 4
    assert done.stderr.startswith("Cannot write")
