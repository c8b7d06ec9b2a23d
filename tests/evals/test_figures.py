"""The charts: what is drawn of a report, in SVG and PNG alike."""

from __future__ import annotations

import re
import struct
from xml.etree import ElementTree as ET

import pytest

from evals.render.canvas import VARIABLES, as_png, as_svg
from evals.render.curves import curves, prompt_speeds, tell_apart, total_output_tok_s
from evals.render.figures import charts
from tests.evals.pages import DRAFTER, FULL_SWEEP, speed, sweep
from tests.evals.records import record, unit
from tests.evals.test_render import REPORTS
from tests.evals.test_report import SWEEP, report_of

SVG = "{http://www.w3.org/2000/svg}"


def named(reports, name):
    (chart,) = [chart for chart in charts(reports) if chart.name == name]
    return chart


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", REPORTS)
def test_whatever_has_figures_is_drawn_in_both_forms(name):
    for chart in charts([REPORTS[name]]):
        assert texts(as_svg(chart))
        png = as_png(chart)
        assert png.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", png[16:24])
        assert 800 <= width <= 1200
        assert height > 300


def test_each_report_has_the_charts_of_its_kind():
    assert [chart.name for chart in charts([sweep()])] == ["throughput", "ttft"]
    assert [chart.name for chart in charts([sweep(drafted=4, accepted=1)])] == ["throughput", "ttft", "acceptance"]
    assert [chart.name for chart in charts([speed()])] == ["speed"]
    assert [chart.name for chart in charts([speed(), speed(drafter=DRAFTER)])] == ["speed", "acceptance"]
    assert charts([REPORTS["failed"]]) == []


def test_text_stays_text_and_axes_have_units():
    found = texts(as_svg(named([sweep()], "throughput")))
    for words in ("total output (tokens/s)", "concurrency (requests at once)", "512 in, 8 out", "64"):
        assert words in found
    found = texts(as_svg(named([sweep()], "ttft")))
    for words in ("time to first token (ms)", "p50", "p99", "1,000"):
        assert words in found


def test_times_over_decades_are_drawn_by_decades_and_others_from_zero():
    wide = texts(as_svg(named([sweep()], "ttft")))
    assert "0" not in wide
    narrow = report_of(unit(SWEEP), lambda key: [record(str(n)) for n in range(key.concurrency)])
    assert "0" in texts(as_svg(named([narrow], "ttft")))


def test_every_colour_of_a_chart_follows_the_page():
    svg = as_svg(named([sweep()], "throughput"))
    bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]{6}\)", "", svg)
    assert re.findall(r"#[0-9a-f]{6}\b", bare) == []
    used = set(re.findall(r"var\(--([a-z0-9-]+)", svg))
    assert {"ink", "muted", "grid", "series-1", "series-2"} <= used <= set(VARIABLES.values())


def test_equal_reports_give_equal_bytes_without_date_or_version():
    first, second = named([sweep()], "ttft"), named([sweep()], "ttft")
    assert as_svg(first) == as_svg(second)
    assert as_png(first) == as_png(second)
    assert b"matplotlib" not in as_png(first).lower()
    assert not re.search(r"<metadata|matplotlib v|\d{4}-\d\d-\d\d", as_svg(first), re.IGNORECASE)


def test_a_chart_tells_itself_to_whoever_cannot_see_it():
    svg = as_svg(named([speed()], "speed"))
    assert ET.fromstring(svg).attrib["role"] == "img"
    assert "code 100.0; story 100.0" in ET.fromstring(svg).attrib["aria-label"]


def test_two_reports_are_named_by_what_differs():
    assert tell_apart([speed(), speed(drafter=DRAFTER)]) == ["no drafter", "ngram drafter, 4 tokens"]
    assert tell_apart([speed(), speed().model_copy(update={"report_id": "r2"})]) == ["r1", "r2"]
    assert texts(as_svg(named([speed(), speed(drafter=DRAFTER)], "speed")))[-2:] == [
        "no drafter",
        "ngram drafter, 4 tokens",
    ]


def test_a_point_is_the_median_of_its_repeats():
    report = sweep(FULL_SWEEP | {"concurrency": [4, 1]})
    first, _ = curves(report)
    assert [point.concurrency for point in first.points] == [1, 4]
    values = sorted(cell.total_output_tok_s or 0 for cell in report.cells if cell.concurrency == 4)
    own = sorted(first.points[1].values(total_output_tok_s))
    assert set(own) <= set(values)
    assert first.points[1].median(total_output_tok_s) == own[2]


def test_a_prompts_kept_share_is_over_all_its_repeats():
    (code, _) = prompt_speeds(speed(drafter=DRAFTER))
    assert code.acceptance_percent == pytest.approx(37.5)
    assert prompt_speeds(speed())[0].acceptance_percent is None


@pytest.mark.parametrize("concurrency", [[1], [5, 6, 7], [1, 1024], list(range(1, 120))])
def test_any_set_of_concurrencies_has_an_axis(concurrency):
    report = REPORTS["sweep"]
    cells = [report.cells[0].model_copy(update={"concurrency": number}) for number in concurrency]
    found = texts(as_svg(named([report.model_copy(update={"cells": cells})], "throughput")))
    assert str(concurrency[0]) in found
    assert sum(text.replace(",", "").isdigit() for text in found) < 30


def test_what_is_over_the_survivors_is_crossed_out_and_what_has_no_figure_is_named():
    report = sweep()
    assert "Crossed out" not in named([report], "throughput").note
    whole = as_svg(named([report], "throughput"))
    cells = [cell.model_copy(update={"status": "failed"}) if cell.repeat == 5 else cell for cell in report.cells]
    nothing = {"total_output_tok_s": None, "ttft_ms": None}
    cells = [cell.model_copy(update=nothing) if cell.input_len == 128 else cell for cell in cells]
    part = report.model_copy(update={"cells": cells})
    for name in ("throughput", "ttft"):
        assert "Crossed out" in named([part], name).note
        assert "Without a figure: 128 in, 16 out." in named([part], name).note
    assert as_svg(named([part], "throughput")) != whole
