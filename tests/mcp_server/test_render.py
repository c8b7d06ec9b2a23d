"""`render_report` through a real worker and its drawing process: pages, charts as images, and what cannot be drawn."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path
from typing import Any

import pytest
from mcp.types import CallToolResult, ImageContent, TextContent

from evals.report import Report
from mcp_server.config import Config
from mcp_server.rows import Unit, utc_now
from mcp_server.state import State
from tests.evals.pages import ARM, DRAFTER, FULL_SWEEP, speed, sweep
from tests.evals.records import unit
from tests.evals.test_render import REPORTS
from tests.mcp_server.conftest import Session, session

PNG = b"\x89PNG\r\n\x1a\n"


def put_report(config: Config, report: Report, report_id: str) -> Path:
    """A report as a finished unit leaves it."""
    folder = config.runs / report_id
    folder.mkdir()
    (folder / "report.json").write_text(report.model_copy(update={"report_id": report_id}).model_dump_json())
    state = State(config.database)
    state.put_unit(
        Unit(
            unit_id=report_id,
            job_id=report_id,
            rig="local",
            kind=report.kind,
            status=report.status,
            folder=str(folder),
            created_at=utc_now(),
        )
    )
    state.close()
    return folder


async def rendered(s: Session, **arguments: Any) -> CallToolResult:
    """The result once it is drawn, as a client gets it that waits and calls again."""
    first = await s.call("render_report", **arguments)
    await s.finish(first["job"])
    result = await s.client.call_tool("render_report", arguments)
    assert isinstance(result, CallToolResult)
    assert result.structured_content is not None, result.content
    assert result.structured_content["job"]["status"] == "done"
    return result


async def test_a_page_is_drawn_once_and_given_at_once_until_the_report_changes(config: Config) -> None:
    folder = put_report(config, sweep(), "sweep-1")
    async with session(config) as s:
        result = await rendered(s, report_id="sweep-1", format="html")
        assert result.structured_content is not None
        path = Path(result.structured_content["path"])
        assert path == folder / "report.html"
        assert path.read_text().startswith("<!doctype html>")
        assert result.structured_content["next_step"] == "open the page in a browser"
        again = await s.call("render_report", report_id="sweep-1", format="html")
        assert again["job"]["job_id"] == result.structured_content["job"]["job_id"]
        later = time.time() + 5
        os.utime(folder / "report.json", (later, later))
        renewed = await s.call("render_report", report_id="sweep-1", format="html")
        assert renewed["job"]["job_id"] != again["job"]["job_id"]
        await s.finish(renewed["job"])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_charts_come_as_images_beside_the_structured_result(config: Config, mode: Any) -> None:
    folder = put_report(config, sweep(), "sweep-1")
    async with session(config, mode) as s:
        result = await rendered(s, report_id="sweep-1", format="png")
    text, *images = result.content
    assert isinstance(text, TextContent)
    assert [type(image) for image in images] == [ImageContent, ImageContent]
    assert result.structured_content is not None
    paths = [Path(path) for path in result.structured_content["paths"]]
    assert paths == [folder / "figures/throughput.png", folder / "figures/ttft.png"]
    for path, image in zip(paths, images, strict=True):
        assert isinstance(image, ImageContent)
        assert image.mime_type == "image/png"
        assert base64.b64decode(image.data) == path.read_bytes()
        assert path.read_bytes().startswith(PNG)


async def test_two_reports_are_drawn_beside_each_other_and_unlike_ones_refused(config: Config) -> None:
    put_report(config, speed(drafter=DRAFTER), "speed-2")
    put_report(config, speed(), "speed-1")
    put_report(config, sweep(), "sweep-1")
    async with session(config) as s:
        result = await rendered(s, report_id="speed-2", against="speed-1", format="html")
        assert result.structured_content is not None
        page = Path(result.structured_content["path"])
        assert page.name == "report-against-speed-1.html"
        assert "ngram drafter, 4 tokens" in page.read_text()
        error = await s.finish_or_error("render_report", report_id="speed-2", against="sweep-1", format="html")
        assert "differ in their kind" in error
        assert "against is for html and png" in await s.error("render_report", report_id="speed-2", against="speed-1")
        assert "Unknown report 'x'" in await s.error("render_report", report_id="speed-2", against="x", format="png")


async def test_a_report_without_figures_has_a_page_and_no_images(config: Config) -> None:
    put_report(config, REPORTS["failed"], "sweep-1")
    async with session(config) as s:
        page = await rendered(s, report_id="sweep-1", format="html")
        charts = await rendered(s, report_id="sweep-1", format="png")
    assert page.structured_content is not None
    assert "There is nothing to draw" in Path(page.structured_content["path"]).read_text()
    assert charts.structured_content is not None
    assert charts.structured_content["paths"] == []
    assert "nothing to draw" in charts.structured_content["next_step"]
    assert len(charts.content) == 1


async def test_a_unit_that_still_runs_has_a_page_of_what_there_is(config: Config) -> None:
    folder = put_report(config, sweep(), "sweep-1")
    report = Report.model_validate_json((folder / "report.json").read_text())
    (folder / "report.json").unlink()
    (folder / "spec.json").write_text(unit(FULL_SWEEP, arm=ARM, report_id="sweep-1").model_dump_json())
    (folder / "cells.jsonl").write_text("".join(cell.model_dump_json() + "\n" for cell in report.cells[:3]))
    async with session(config) as s:
        first = await s.call("render_report", report_id="sweep-1", format="html")
        job = await s.finish(first["job"])
        page = Path(job["result"]["path"]).read_text()
        assert "3 of 70 cells so far" in page
        again = await s.call("render_report", report_id="sweep-1", format="html")
        assert again["job"]["job_id"] != job["job_id"], "what still grows is drawn anew"
        await s.finish(again["job"])
