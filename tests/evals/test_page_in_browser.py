"""The page as people see it: a real Chromium, at the width of a desk and of a telephone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import CHROMIUM, DESKTOP, MISSING, PHONE, Page, browser
from tests.evals.pages import DRAFTER, hostile, page_of, speed, sweep
from tests.evals.test_render import REPORTS

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason=MISSING),
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(300),
]
CUT = """
[...document.querySelectorAll("main *")].filter(element => {
  if (element.closest(".scroll, pre, svg, details:not([open]) > :not(summary)")) return false;
  const box = element.getBoundingClientRect();
  return box.right > innerWidth + 1 || box.left < -1 || element.scrollWidth > element.clientWidth + 1
    && getComputedStyle(element).display !== "inline" && getComputedStyle(element).overflowX !== "auto";
}).map(element => element.outerHTML.slice(0, 120))
"""
TEXT_OUT_OF_CHART = """
[...document.querySelectorAll("figure svg")].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
  }).map(text => text.textContent);
})
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


def pages() -> dict[str, str]:
    return {
        "sweep": page_of(sweep(drafted=4, accepted=2)),
        "speeds": page_of(speed(drafter=DRAFTER), speed()),
        "hostile": page_of(hostile()),
        "failed": page_of(REPORTS["failed"]),
        "nothing": page_of(REPORTS["no cells"]),
    }


def test_nothing_is_cut_and_the_console_is_silent_at_both_widths(page: Page, tmp_path: Path) -> None:
    for name, text in pages().items():
        path = tmp_path / f"{name}.html"
        path.write_text(text)
        for width in (DESKTOP, PHONE):
            page.open(path, width)
            where = f"{name} at {width}"
            assert page.evaluate("innerWidth") == width, where
            assert page.evaluate("document.documentElement.scrollWidth") <= width, where
            assert page.evaluate(CUT) == [], where
            assert page.evaluate(TEXT_OUT_OF_CHART) == [], where
            assert page.complaints == [], where
            assert page.fetched == [path.as_uri()], where
            assert page.evaluate("window.pwned") is None, where


def test_a_script_that_got_into_the_page_would_not_run(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(speed()).replace("</main>", "<script>window.pwned = 1</script></main>"))
    page.open(path, DESKTOP)
    assert page.evaluate("window.pwned") is None
    assert "Content Security Policy" in page.complaints[0]


SPEEDS = "[...document.querySelectorAll('#tables table')].at(-1).tBodies[0].rows"


def test_tables_sort_by_a_click_with_what_is_missing_last(page: Page, tmp_path: Path) -> None:
    report = sweep()
    cells = [report.cells[0].model_copy(update={"total_output_tok_s": None}), *report.cells[1:]]
    path = tmp_path / "page.html"
    path.write_text(page_of(report.model_copy(update={"cells": cells})))
    page.open(path, DESKTOP)
    keys = f"[...{SPEEDS}].map(row => row.cells[4].dataset.v === undefined ? null : +row.cells[4].dataset.v)"
    button = "[...document.querySelectorAll('#tables table')].at(-1).tHead.rows[0].cells[4].querySelector('button')"
    expected = sorted(round(cell.total_output_tok_s, 6) for cell in cells if cell.total_output_tok_s is not None)
    page.evaluate(f"{button}.click()")
    assert page.evaluate(keys) == [*expected, None]
    page.evaluate(f"{button}.click()")
    assert page.evaluate(keys) == [*reversed(expected), None]


def test_the_page_is_whole_without_script(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(speed()))
    page.open(path, DESKTOP, script=False)
    (tmp_path / "shot.png").unlink(missing_ok=True)
    page.screenshot(tmp_path / "shot.png")
    assert (tmp_path / "shot.png").stat().st_size > 20_000
    assert page.complaints == []


def test_the_page_can_be_printed_and_read_in_the_dark(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(sweep()))
    page.open(path, DESKTOP, dark=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('figure svg text')).fill"
    assert (page.evaluate(ground), page.evaluate(ink)) == ("rgb(20, 24, 28)", "rgb(230, 233, 236)")
    page.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
