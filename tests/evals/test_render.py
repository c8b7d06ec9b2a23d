import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.cells import cell_without_requests, measure_cell
from evals.render import csv as csv_table
from evals.render import markdown
from evals.report import Failure, Scores
from evals.self_check import ClientCheck
from evals.summary import EndedEarly, build_report
from evals.workload import plan_cells
from tests.evals.records import failed, record, unit
from tests.evals.test_report import SPEED, SWEEP, ok_burst, report_of

ARM = {
    "rig": "desk",
    "accelerator": "T4",
    "engine": "llamacpp",
    "engine_version": "b1",
    "drafter": {"method": "ngram", "draft_tokens": 4},
}


def empty(spec):
    return build_report(spec, {}, started_at=None, requests_path="requests.jsonl", provenance={})


def infeasible(spec):
    cells = {key: cell_without_requests(key, "infeasible", "too long") for key in plan_cells(spec.work)}
    return build_report(spec, cells, started_at=None, requests_path="requests.jsonl", provenance={})


EVAL = {"kind": "eval", "dataset": "gsm8k", "items_sha256": "0" * 64, "items": 12, "max_tokens": 64}


def scored(spec):
    """The first of its two cells with a score, the second not run."""
    key = plan_cells(spec.work)[0]
    scores = Scores(n=8, correct=5, not_answered=0, cut_off=2, lm_eval_strict=4, lm_eval_flexible=5)
    cell = measure_cell(key, [record(str(number)) for number in range(8)]).model_copy(update={"scores": scores})
    return build_report(
        spec, dict(zip([key], [cell], strict=True)), started_at=None, requests_path="requests.jsonl", provenance={}
    )


REPORTS = {
    "eval": scored(unit(EVAL)),
    "unsupported": build_report(
        unit(EVAL),
        {},
        started_at=None,
        requests_path="requests.jsonl",
        provenance={},
        ended=EndedEarly(status="unsupported", reason="no tools"),
    ),
    "sweep": report_of(unit(SWEEP, arm=ARM), ok_burst, client=ClientCheck(cpu_share=0.25)),
    "speed": report_of(unit(SPEED), lambda _: [record(drafted=4, accepted=1)]),
    "failed": report_of(unit(SWEEP), lambda _: [failed("http 500: a | b\n# c")]),
    "nulls": report_of(unit(SPEED), lambda _: [record(tokens=None, output_tokens=None)]),
    "cancelled": report_of(unit(SWEEP), lambda _: None, ended=EndedEarly(status="cancelled", reason="stop")),
    "empty sweep": empty(unit(SWEEP)),
    "empty speed": empty(unit(SPEED)),
    "infeasible": infeasible(unit(SWEEP)),
    "no cells": empty(unit(SWEEP)).model_copy(update={"cells": []}),
}


@pytest.mark.parametrize("name", REPORTS)
def test_every_valid_report_can_be_rendered(name):
    page = markdown.render(REPORTS[name])
    assert page.startswith("# ")
    assert page.endswith("```\n")
    rows = list(csv.reader(io.StringIO(csv_table.render(REPORTS[name]))))
    assert len(rows) == 1 + len(REPORTS[name].cells)
    assert {len(row) for row in rows} == {len(csv_table.COLUMNS)}


def test_the_page_begins_with_the_arm_and_its_doubts():
    page = markdown.render(REPORTS["sweep"])
    assert page.splitlines()[0] == "# Sweep: desk, T4, llamacpp b1, ngram drafter, 4 drafted tokens"
    assert page.index("## Warnings") < page.index("## 512 tokens in, 4 out") < page.index("## Definitions")
    assert page.index("## Definitions") < page.index("## Provenance")
    assert "- raw requests: `requests.jsonl`" in page


def test_a_sweep_table_has_a_row_for_each_concurrency():
    assert [line for line in markdown.render(REPORTS["sweep"]).splitlines() if line.startswith(("| 1 ", "| 2 "))] == [
        "| 1 | 50.0 | 50.0 | 50.0 | 10.00 | 1 | 0 | 1 of 1 |  |",
        "| 2 | 100.0 | 50.0 | 50.0 | 10.00 | 2 | 0 | 1 of 1 |  |",
    ]


def test_a_sweep_figure_is_the_median_over_repeats():
    def records(key):
        return [record(at_ms=(key.repeat * 50, key.repeat * 50 + 10), tokens=(1, 1))]

    page = markdown.render(report_of(unit(SWEEP | {"concurrency": [1], "repeats": 3}), records))
    # Sends at 0; repeats end at 60, 110 and 160 ms: the middle one is 2 tokens in 110 ms.
    assert "| 1 | 18.2 | 100.0 | 100.0 | 10.00 | 3 | 0 | 3 of 3 |  |" in page


def test_a_speed_table_has_a_row_for_each_prompt_and_the_geometric_mean():
    page = markdown.render(REPORTS["speed"])
    assert "| code | 100.0 | 50.0 | 50.0 | 2 | 0.0% |" in page
    assert "Geometric mean over prompts: **100.0 tok/s**." in page


def test_nulls_are_dashes_with_the_reason_and_never_zeros():
    page = markdown.render(REPORTS["nulls"])
    assert "| code | - | - | 50.0 | 2 | - |" in page
    assert "Geometric mean over prompts: **- tok/s** (no decode speed of code, story)." in page


def test_a_servers_words_cannot_break_the_table_or_the_page():
    page = markdown.render(REPORTS["failed"])
    assert "http 500: a \\| b # c" in page
    assert "\n# c" not in page


@given(st.text(max_size=40))
def test_any_words_of_a_server_can_be_rendered(words):
    words = words.encode("utf-8", "replace").decode()
    failure = Failure(where="c=1", reason=words, count=1)
    report = REPORTS["sweep"].model_copy(
        update={"failures": [failure], "warnings": [words], "reason": words, "provenance": {"x": words}}
    )
    assert markdown.render(report).count("## Provenance") == 1
    assert csv_table.render(report)


def test_csv_values_stand_under_their_names():
    first, second = csv.DictReader(io.StringIO(csv_table.render(REPORTS["sweep"])))
    assert (first["concurrency"], second["concurrency"]) == ("1", "2")
    assert (second["requests_ok"], second["ttft_ms_p50"], second["ttft_ms_n"]) == ("2", "50.0", "2")
    assert (second["total_output_tok_s"], second["drafted_tokens"]) == ("100.0", "")


def test_a_servers_words_are_no_formula_to_a_spreadsheet():
    cell = REPORTS["sweep"].cells[0].model_copy(update={"reason": "=HYPERLINK(1)"})
    table = csv_table.render(REPORTS["sweep"].model_copy(update={"cells": [cell]}))
    assert next(csv.DictReader(io.StringIO(table)))["reason"] == "'=HYPERLINK(1)"
