import json
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
from pydantic import BaseModel

import evals.report
from evals.cells import measure_cell
from evals.report import Report, report_schema
from evals.self_check import ClientCheck, judged
from evals.summary import EndedEarly, build_report
from evals.workload import plan_cells
from tests.evals.records import failed, known, record, unit

GOLDEN = Path(__file__).parent / "golden_report_fields.txt"
SWEEP = {"kind": "sweep", "concurrency": [1, 2], "shapes": [{"input_len": 512, "output_len": 4}], "repeats": 1}
SPEED = {"kind": "speed", "prompts": ["code", "story"], "max_tokens": 256, "repeats": 2}
STARTED = "2026-01-01T00:00:00+00:00"


def report_of(spec, records, *, ended=None, client=None):
    """Each cell with `records(key)`; None leaves the cell out."""
    cells = {}
    for key in plan_cells(spec.work):
        found = records(key)
        if found is not None:
            cells[key] = measure_cell(key, found, client=client, started_at=STARTED, finished_at=STARTED)
    return build_report(
        spec, cells, started_at=STARTED, requests_path="requests.jsonl", provenance={"measured_by": {}}, ended=ended
    )


def ok_burst(key):
    return [record(str(number)) for number in range(key.concurrency)]


def fields_of(model: type[BaseModel], indent: int = 0) -> list[str]:
    lines = []
    for name, field in model.model_fields.items():
        lines.append("  " * indent + name)
        annotation = field.annotation
        for part in [annotation, *get_args(annotation)]:
            if isinstance(part, type) and issubclass(part, BaseModel) and part.__module__.startswith("evals."):
                lines += fields_of(part, indent + 1)
    return lines


def test_the_order_of_fields_is_the_golden_one():
    assert "\n".join(fields_of(Report)) + "\n" == GOLDEN.read_text()


def test_the_schema_in_the_package_is_that_of_the_model():
    packaged = Path(evals.report.__file__).parent / "report.schema.json"
    assert packaged.read_text() == report_schema()


def test_a_report_is_valid_by_the_schema_and_survives_json():
    report = report_of(unit(SWEEP), ok_burst, client=ClientCheck(cpu_share=0.1))
    text = report.model_dump_json()
    jsonschema.validate(json.loads(text), json.loads(report_schema()))
    assert Report.model_validate_json(text) == report


def test_every_defined_figure_is_explained():
    report = report_of(unit(SWEEP), ok_burst)
    explained = " ".join([*report.definitions, *report.definitions.values()])
    for name in ("ttft_ms", "itl_ms", "icl_ms", "tpot_ms", "e2e_ms", "decode_tok_s", "e2e_tok_s", "total_output_tok_s"):
        assert name in explained


def test_a_clean_unit_is_ok_and_warns_only_of_few_samples():
    report = report_of(unit(SWEEP, endpoint={"request": {"tokenize_path": "/tokenize"}}), ok_burst)
    assert (report.status, report.reason, report.failures) == ("ok", None, [])
    assert [warning.split(":")[0] for warning in report.warnings] == ["few samples"]
    assert report.seed == 7
    assert report.started_at == report.finished_at == STARTED


def test_a_unit_fails_above_one_percent_of_failed_requests():
    def records(key):
        return [*ok_burst(key)[1:], failed("http 503: busy")]

    report = report_of(unit(SWEEP), records)
    assert report.status == "failed"
    assert report.reason == "2 of 3 requests failed, most of them: http 503: busy"
    assert [failure.model_dump() for failure in report.failures] == [
        {"where": "c=1 512/4 #1", "reason": "http 503: busy", "count": 1},
        {"where": "c=2 512/4 #1", "reason": "http 503: busy", "count": 1},
    ]


def test_a_unit_with_one_failure_in_hundreds_stands_and_still_lists_it():
    work = SWEEP | {"concurrency": [1, 200]}

    def records(key):
        return ok_burst(key) if key.concurrency == 1 else [*ok_burst(key)[1:], failed()]

    report = report_of(unit(work), records)
    assert report.status == "ok"
    assert report.failures[0].where == "c=200 512/4 #1"
    assert any(warning.startswith("failed requests: 1 in 1 cells") for warning in report.warnings)


def test_cells_that_were_not_run_are_listed_with_the_reason():
    ended = EndedEarly(status="failed", reason="the endpoint is gone")
    report = report_of(unit(SWEEP), lambda key: ok_burst(key) if key.concurrency == 1 else None, ended=ended)
    assert (report.status, report.reason) == ("failed", "the endpoint is gone")
    assert [(cell.status, cell.reason) for cell in report.cells] == [("ok", None), ("not_run", "the endpoint is gone")]
    assert report.failures == []


def test_a_cancelled_unit_has_a_report_of_what_was_finished():
    report = report_of(unit(SPEED), lambda _: None, ended=EndedEarly(status="cancelled", reason="cancelled after 0"))
    assert report.status == "cancelled"
    assert {cell.status for cell in report.cells} == {"not_run"}
    assert known(report.speed).geomean_decode_tok_s is None


@pytest.mark.parametrize(
    ("changes", "endpoint", "expected"),
    [
        ({"cached_tokens": 24}, {}, "prefix cache: the server took 72 of 1536 (4.7%) prompt tokens of 2 cells"),
        (
            {"input_tokens": 500},
            {},
            "prompt lengths: 3 of 3 requests had another prompt length than asked, first in c=1",
        ),
        ({"output_tokens": 3}, {}, "reply lengths: 3 of 3 requests had another reply length than asked"),
        ({}, {"parallel": 1}, "queueing: the server decodes 1 requests at once, so at concurrency 2"),
        ({}, {}, "prompt lengths were estimated"),
    ],
)
def test_doubts_are_warnings_with_numbers(changes, endpoint, expected):
    report = report_of(
        unit(SWEEP, endpoint=endpoint), lambda key: [record(str(i), **changes) for i in range(key.concurrency)]
    )
    assert any(warning.startswith(expected) for warning in report.warnings), report.warnings


def test_a_limited_client_is_the_first_warning_and_the_verdict_of_the_unit():
    client = ClientCheck(cpu_share=0.95, verdict="client_limited", reasons=("cpu_share 0.95 above 0.8",))
    report = report_of(unit(SWEEP), ok_burst, client=client)
    assert report.warnings[0].startswith("client_limited: in 2 of 2 cells")
    assert "cpu_share 0.95 above 0.8" in report.warnings[0]
    assert known(report.client).verdict == "client_limited"


def test_a_limited_unit_gives_one_reason_a_kind_by_the_worst_figure():
    spec = unit(SWEEP)
    cells = {}
    for key, lag_ms in zip(plan_cells(spec.work), (11.9, 12.3), strict=True):
        client = judged(ClientCheck(loop_lag_p99_ms=lag_ms))
        cells[key] = measure_cell(key, ok_burst(key), client=client)
    report = build_report(spec, cells, started_at=None, requests_path="requests.jsonl", provenance={})
    assert known(report.client).verdict == "client_limited"
    assert known(report.client).reasons == ("its loop was 12.3 ms late at p99 (limit 5)",)


def test_a_p99_over_a_hundred_requests_needs_no_warning():
    report = report_of(unit(SWEEP | {"concurrency": [100]}), ok_burst)
    assert not any(warning.startswith("few samples") for warning in report.warnings)


def test_an_unknown_field_in_a_report_is_refused():
    document = json.loads(report_of(unit(SWEEP), ok_burst).model_dump_json())
    with pytest.raises(ValueError, match="surprise"):
        Report.model_validate_json(json.dumps(document | {"surprise": 1}))


def test_a_chat_reply_above_its_limit_is_a_warning():
    report = report_of(unit(SPEED), lambda key: [record(output_tokens=300)])
    assert any(warning.startswith("reply lengths: 4 of 4 requests") for warning in report.warnings)
