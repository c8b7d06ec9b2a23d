"""The page: everything in it, nothing of it dangerous, for every report there can be."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from evals.cells import cell_without_requests
from evals.errors import IncomparableReportsError
from evals.report import Distribution
from evals.workload import plan_cells
from tests.evals.pages import DRAFTER, FULL_SWEEP, HOSTILE, hostile, page_of, speed, sweep
from tests.evals.records import record, unit
from tests.evals.test_render import REPORTS
from tests.evals.test_report import SWEEP, report_of

VOID = {"meta", "link", "img", "br"}
NAMES = (HOSTILE, "", " ", "_", "$", "\\", "%s{0}", "\u65e5\u672c\u8a9e \U0001f600", "x" * 5000)


class Reader(HTMLParser):
    """Elements, attributes and texts, and whether every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


@pytest.mark.parametrize("name", REPORTS)
def test_every_valid_report_becomes_a_page(name):
    reader = Reader(page_of(REPORTS[name]))
    assert reader.tags.count("script") == 1
    assert len(reader.ids) == len(set(reader.ids)), "ids are unique"


def test_doubts_come_first_then_figures_charts_tables_and_where_they_come_from():
    page = page_of(sweep())
    order = [page.index(f'id="{name}"') for name in ("warnings", "headline", "charts", "tables", "client")]
    order += [page.index(f'id="{name}"') for name in ("provenance", "definitions")]
    assert order == sorted(order)
    assert page.count("<svg") == 2
    words = text_of(page)
    for part in ("512 in, 8 out", "concurrency 64", "workload", "total_output_tok_s", "llamacpp b11549", "0.25"):
        assert part in words


def test_the_page_needs_nothing_from_anywhere():
    page = page_of(sweep(drafted=4, accepted=2))
    for tag, name, value in Reader(page).attributes:
        assert name not in ("src", "srcset", "action", "data", "poster"), (tag, value)
        assert not name.startswith("on"), (tag, name)
        if name.endswith("href"):
            assert value.startswith("#") or value == "data:,"
    assert "@import" not in page
    assert set(re.findall(r"url\(([^)]*)\)", page)) == {
        found for found in re.findall(r"url\(([^)]*)\)", page) if found.startswith("#")
    }


def test_only_our_script_may_run():
    page = page_of(hostile())
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in policy
    assert policy.startswith("default-src 'none';")


def test_words_from_outside_stay_words():
    plain, attacked = page_of(speed(drafter=DRAFTER)), page_of(hostile())
    reader = Reader(attacked)
    assert set(reader.tags) <= set(Reader(plain).tags) | {"section", "abbr", "table", "p", "ul", "li", "thead"}
    assert "img" not in reader.tags
    assert reader.tags.count("script") == 1
    assert "<!--" not in attacked
    assert not re.search("[\x00\x1b\u202e]", attacked)
    assert "{{7*7}}" in attacked, "a template in a model's words is not run"
    assert "onerror" not in {name for _, name, _ in reader.attributes}


@pytest.mark.parametrize("words", NAMES)
def test_any_name_can_be_a_prompt_and_an_arm(words):
    report = speed()
    cells = [cell.model_copy(update={"prompt": words}) for cell in report.cells]
    arm = report.arm.model_copy(update={"engine": words})
    one = report.model_copy(update={"cells": cells, "arm": arm})
    Reader(page_of(one, report.model_copy(update={"cells": cells})))


def test_why_a_cell_has_no_figure_is_said():
    key, *_ = plan_cells(unit(SWEEP).work)
    cells = [
        cell_without_requests(key, "infeasible", "640 tokens do not fit"),
        cell_without_requests(key, "not_run", "the engine is gone"),
        *REPORTS["nulls"].cells,
    ]
    words = text_of(page_of(REPORTS["sweep"].model_copy(update={"cells": cells})))
    for part in (
        "640 tokens do not fit",
        "the engine is gone",
        "the chunks hide their tokens",
        "infeasible",
        "not_run",
    ):
        assert part in words


def test_numbers_that_are_damage_are_not_drawn():
    report = REPORTS["sweep"]
    times = Distribution(mean=float("inf"), p50=float("nan"), p90=1e300, p99=-1e300, n=1)
    broken = {"total_output_tok_s": float("nan"), "ttft_ms": times, "decode_tok_s": float("inf")}
    cells = [cell.model_copy(update=broken) for cell in report.cells]
    page = page_of(report.model_copy(update={"cells": cells}))
    assert "There is nothing to draw" in page
    assert not re.search(r">(nan|inf)<", page)


def test_two_reports_stand_side_by_side_with_their_ratio():
    page = page_of(speed(drafter=DRAFTER, gap_ms=5.0), speed())
    words = text_of(page)
    assert "ngram drafter, 4 tokens" in words
    assert "no drafter" in words
    assert "2.00" in words
    assert page.count("<svg") == 2, "speed, and what was kept of the drafts"


def test_the_other_reports_doubts_are_told_too():
    other = speed().model_copy(update={"status": "failed", "reason": "it broke", "warnings": ["it was warm"]})
    words = text_of(page_of(speed(drafter=DRAFTER), other))
    assert "no drafter: failed: it broke" in words
    assert "no drafter: it was warm" in words


def test_unlike_reports_are_not_put_side_by_side():
    with pytest.raises(IncomparableReportsError, match="differ in their kind"):
        page_of(speed(), REPORTS["sweep"])
    with pytest.raises(IncomparableReportsError, match="differ in their workload"):
        page_of(sweep(), sweep(FULL_SWEEP | {"repeats": 2}))


def test_a_full_sweep_is_a_page_of_less_than_2_mb():
    report = sweep(drafted=4, accepted=2)
    assert len(report.cells) == 70
    assert len(page_of(report).encode()) < 2_000_000


def test_one_cell_and_five_thousand_can_be_drawn():
    one = sweep(FULL_SWEEP | {"concurrency": [3], "shapes": [{"input_len": 8, "output_len": 2}], "repeats": 1})
    assert len(one.cells) == 1
    assert page_of(one).count("<svg") == 2
    work = {"kind": "sweep", "concurrency": [1, 2], "repeats": 1}
    small = sweep(work | {"shapes": [{"input_len": 8 + n, "output_len": 2} for n in range(25)]})
    cells = [cell.model_copy(update={"repeat": repeat}) for repeat in range(1, 101) for cell in small.cells]
    page = page_of(small.model_copy(update={"cells": cells}))
    assert len(cells) == 5000
    assert page.count("c=1 8/2 #") >= 100
    assert "The first 8 of 25 shapes" in page


def test_equal_reports_give_equal_pages():
    assert page_of(sweep()) == page_of(sweep())


def test_a_concurrency_with_a_failed_repeat_says_so_beside_its_median():
    key = plan_cells(unit(SWEEP).work)[0]
    report = report_of(unit(SWEEP), lambda _: [record()])
    lost = cell_without_requests(key, "not_run", "stopped")
    page = page_of(report.model_copy(update={"cells": [*report.cells, lost]}))
    assert "1 of 2" in page
    assert "not_run: stopped" in page
