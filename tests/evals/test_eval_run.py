"""Evals end to end, against a server whose replies are scripted."""

import asyncio
import hashlib
import json
import signal
import time

import pytest

from evals import eval_run, gsm8k
from evals.cells import measure_cell
from evals.errors import WorkloadError
from evals.eval_run import with_scores
from evals.questions import ItemResult, encode_questions, read_rows
from evals.render import csv, markdown
from evals.report import Report
from evals.runner import run_unit
from evals.workload import plan_cells, slices, workload_hash
from tests.evals.records import known, record, unit
from tests.evals.test_bfcl import NAME, ROW
from tests.evals.test_runner import command, finished, recorded, wait_for_cells, write_spec
from tests.evals.truth_server import TruthServer

PROBE = {"request": {"tools_probe": {"path": "/props", "key": "chat_template_caps.supports_tools"}}}


def sums(count):
    """Word problems whose answers are 1, 2, 3 ..."""
    rows = [{"question": f"What is {number} + 1?", "answer": f"#### {number + 1}"} for number in range(count)]
    return [gsm8k.question_of(row, number, "test") for number, row in enumerate(rows, 1)]


def calls(count=2):
    from evals import bfcl

    rows = [{**ROW, "id": f"q{number}"} for number in range(count)]
    answers = {f"q{number}": {NAME: {"text": ["it"], "rate": [2.0, ""]}} for number in range(count)}
    return [bfcl.question_of(row, number, "test", answers) for number, row in enumerate(rows, 1)]


def planned(run_dir, questions, *, base_url, endpoint=None, **work):
    """A unit with its questions beside it, as the worker lays them."""
    content = encode_questions(questions)
    run_dir.mkdir(exist_ok=True)
    (run_dir / "items.jsonl").write_bytes(content)
    known_work = {
        "kind": "eval",
        "dataset": "gsm8k" if questions[0].answer.kind == "number" else "bfcl_simple",
        "items_sha256": hashlib.sha256(content).hexdigest(),
        "items": len(questions),
        "max_tokens": 24,
    }
    return unit(known_work | work, base_url=base_url, endpoint=endpoint or {})


def run(spec, run_dir) -> Report:
    return asyncio.run(run_unit(spec, run_dir))


def results(run_dir) -> list[ItemResult]:
    return [ItemResult.model_validate_json(line) for line in (run_dir / "items_results.jsonl").read_text().splitlines()]


def test_each_question_is_asked_once_and_scored(tmp_path):
    replies = {f"What is {n} +": {"text": f"That is {n} + 1.\n#### {n + 1}"} for n in range(20)}
    replies["What is 3 +"] = {"text": "It is $4 in all, or 4..."}  # right by number, wrong by lm-eval's rules
    replies["What is 5 +"] = {"text": "#### 7"}
    replies["What is 6 +"] = {"text": "word " * 50}
    with TruthServer(replies=replies) as server:
        spec = planned(tmp_path, sums(20), base_url=server.base_url, concurrency=3)
        report = run(spec, tmp_path)
        asked = [truth.body for truth in server.requests]
    assert report.status == "ok"
    assert [cell.requests.ok for cell in report.cells] == [12, 8]
    assert [known(cell.scores).n for cell in report.cells] == [12, 8]
    found = known(report.eval)
    assert (found.dataset, found.n, found.correct, found.not_answered, found.cut_off) == ("gsm8k", 20, 18, 0, 1)
    assert found.score == 0.9
    assert 0.69 < found.score_low < 0.9 < found.score_high < 0.98
    assert (found.lm_eval_strict, found.lm_eval_flexible) == (0.85, 0.85)
    assert (found.scorer_version, found.items_path) == ("gsm8k-1", "items_results.jsonl")
    assert len(asked) == len({body["messages"][0]["content"] for body in asked}) == 20
    assert {(body["temperature"], body["max_tokens"], "tools" in body) for body in asked} == {(0, 24, False)}
    lines = results(tmp_path)
    assert [line.id for line in lines] == [f"gsm8k-{number}" for number in range(1, 21)]
    assert lines[5].text == "#### 7"
    assert lines[5].verdict.why_wrong == "7 instead of 6"
    assert [warning.split(":")[0] for warning in report.warnings if not warning.startswith("client")] == ["cut off"]
    page = markdown.render(report)
    assert "| gsm8k | 20 | 18 | 90.0% |" in page
    assert "questions_correct" in csv.render(report).splitlines()[0]
    assert Report.model_validate_json((tmp_path / "report.json").read_text()) == report


def test_tool_calls_are_asked_for_and_scored(tmp_path):
    right = ("maps_find_place", '{"text": "IT", "rate": 2}')
    with TruthServer(tools=True, natural_tokens=4, per_request={0: {"tool_call": right}}) as server:
        spec = planned(tmp_path, calls(), base_url=server.base_url, endpoint=PROBE)
        report = run(spec, tmp_path)
        (first, _) = (truth.body for truth in server.requests)
    assert first["tools"][0]["function"]["name"] == "maps_find_place"
    found = known(report.eval)
    assert (report.status, found.n, found.correct, found.lm_eval_strict) == ("ok", 2, 1, None)
    one, other = results(tmp_path)
    assert one.tool_calls[0]["function"] == {"name": right[0], "arguments": right[1]}
    assert other.verdict.why_wrong == "0 calls instead of one"
    assert "lm-eval" not in markdown.render(report).split("## Definitions")[0]


def test_a_template_without_tools_is_unsupported_and_nothing_is_sent(tmp_path):
    with TruthServer(tools=False) as server:
        report = run(planned(tmp_path, calls(), base_url=server.base_url, endpoint=PROBE), tmp_path)
        assert server.requests == []
    assert (report.status, report.eval) == ("unsupported", None)
    assert "knows no tools" in known(report.reason)
    assert {cell.status for cell in report.cells} == {"unsupported"}
    assert "unsupported" in markdown.render(report)


@pytest.mark.parametrize("endpoint", [PROBE, {}])
def test_where_the_template_cannot_be_asked_the_questions_are(tmp_path, endpoint):
    with TruthServer(natural_tokens=4) as server:
        report = run(planned(tmp_path, calls(), base_url=server.base_url, endpoint=endpoint), tmp_path)
    assert (report.status, known(report.eval).correct) == ("ok", 0)


def test_word_problems_need_no_tools(tmp_path):
    with TruthServer(tools=False) as server:
        report = run(planned(tmp_path, sums(1), base_url=server.base_url, endpoint=PROBE), tmp_path)
    assert report.status == "ok"


def test_a_failed_request_is_not_answered_and_above_one_percent_fails_the_unit(tmp_path):
    with TruthServer(replies={"What is 1 +": {"status": 500}}, text="#### 1") as server:
        report = run(planned(tmp_path, sums(3), base_url=server.base_url), tmp_path)
    found = known(report.eval)
    assert (report.status, found.n, found.correct, found.not_answered) == ("failed", 3, 1, 1)
    assert "http 500: the server minds" in known(report.reason)
    line = results(tmp_path)[1]
    assert (line.answered, line.reason, line.verdict.correct) == (False, "http 500: the server minds", False)
    assert any(warning.startswith("failed requests: 1 question") for warning in report.warnings)


def test_killed_in_mid_run_each_question_is_recorded_exactly_once(tmp_path):
    # The tenth stream, in the second slice, hangs.
    with TruthServer(per_request={9: {"stall_after": 1}}, text="#### 1") as server:
        spec = planned(tmp_path, sums(20), base_url=server.base_url)
        write_spec(tmp_path, spec)
        with command(tmp_path) as process:
            wait_for_cells(tmp_path, 1, process)
            while len(server.requests) < 10:
                assert process.poll() is None
                time.sleep(0.005)
            process.kill()
        assert process.returncode == -signal.SIGKILL
        before = (tmp_path / "items_results.jsonl").read_bytes()
        # As a kill between the two files leaves it: results whose cell is not recorded.
        torn = before.splitlines()[0].replace(b'"cell":1', b'"cell":2')
        (tmp_path / "items_results.jsonl").write_bytes(before + torn + b"\n" + torn[:40])
        code, err = finished(tmp_path)
        sent = len(server.requests)
    assert code == 0, err
    lines = results(tmp_path)
    assert [line.id for line in lines] == [question.id for question in sums(20)]
    assert [line.cell for line in lines] == [1] * 8 + [2] * 8 + [3] * 4
    assert (tmp_path / "items_results.jsonl").read_bytes().startswith(before)
    assert sent <= 8 + 2 + 12
    report = Report.model_validate_json((tmp_path / "report.json").read_text())
    assert (report.status, known(report.eval).n, len(recorded(tmp_path))) == ("ok", 20, 3)
    assert "right" in err.splitlines()[-1]


def test_a_finished_unit_is_scored_again_from_its_raw_replies_and_sends_nothing(tmp_path):
    with TruthServer(text="#### 1") as server:
        spec = planned(tmp_path, sums(9), base_url=server.base_url)
        first = run(spec, tmp_path)
        sent = len(server.requests)
        # As an older scorer left it.
        for name in ("items_results.jsonl", "cells.jsonl"):
            path = tmp_path / name
            text = path.read_text().replace('"correct":true', '"correct":false').replace('"correct":1', '"correct":0')
            path.write_text(text.replace('"scorer_version":"gsm8k-1"', '"scorer_version":"gsm8k-0"'))
        assert results(tmp_path)[0].scorer_version == "gsm8k-0"
        again = run(spec, tmp_path)
        assert len(server.requests) == sent
    assert again.eval == first.eval
    assert known(again.eval).correct == 1
    assert {line.scorer_version for line in results(tmp_path)} == {eval_run.SCORER_VERSIONS["gsm8k"]}
    assert again.cells == first.cells


@pytest.mark.parametrize("cut", [20, None])
def test_a_damaged_or_missing_question_file_is_code_2_and_one_line(tmp_path, cut):
    spec = planned(tmp_path, sums(3), base_url="http://127.0.0.1:9")
    write_spec(tmp_path, spec)
    path = tmp_path / "items.jsonl"
    content = path.read_bytes()
    path.unlink()
    if cut:
        path.write_bytes(content[:-cut])
    code, err = finished(tmp_path)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "Line 3 of" in err if cut else "Cannot read the questions" in err


def test_results_of_other_questions_are_refused(tmp_path):
    with TruthServer(text="#### 1") as server:
        spec = planned(tmp_path, sums(2), base_url=server.base_url)
        run(spec, tmp_path)
        path = tmp_path / "items_results.jsonl"
        path.write_text(path.read_text().replace("gsm8k-2", "gsm8k-9"))
        with pytest.raises(WorkloadError, match="a result of 'gsm8k-9'"):
            run(spec, tmp_path)


def test_a_reply_that_the_context_cannot_hold_is_infeasible(tmp_path):
    with TruthServer() as server:
        endpoint = {"context_tokens": 24}
        report = run(planned(tmp_path, sums(1), base_url=server.base_url, endpoint=endpoint), tmp_path)
    assert (report.status, report.eval) == ("infeasible", None)


def test_half_a_surrogate_pair_in_a_tool_call_does_not_stop_the_recording(tmp_path):
    spec = planned(tmp_path, calls(1), base_url="http://127.0.0.1:9")
    (key,) = plan_cells(spec.work)
    made = eval_run.EvalRun.of(spec, spec.work, calls(1))  # pyright: ignore[reportArgumentType]  # it is an EvalWork
    half = record(tool_calls=[{"function": {"name": "\ud83d", "arguments": '{"text": "\ud83d"}'}}])
    (result,) = made.results(key, 1, [half])
    assert "why_wrong" in result.model_dump_json()
    assert known(with_scores(measure_cell(key, [half]), [result]).scores).correct == 0


def test_slices_hold_every_question_once_and_several_waves(tmp_path):
    for asked, concurrency in ((1, 1), (8, 1), (9, 1), (1319, 16), (400, 64)):
        work = planned(tmp_path, sums(1), base_url="http://x", items=asked, concurrency=concurrency).work
        parts = slices(work)  # pyright: ignore[reportArgumentType]  # it is an EvalWork
        assert [number for part in parts for number in part] == list(range(asked))
        assert max(map(len, parts)) <= max(8, 4 * concurrency)
        assert len(plan_cells(work)) == len(parts)


def test_the_workload_is_told_by_the_questions_and_the_limit(tmp_path):
    def hash_of(**work):
        return workload_hash(planned(tmp_path, sums(3), base_url="http://x", **work).work)

    assert hash_of() == hash_of()
    assert len({hash_of(), hash_of(limit=2), hash_of(items_sha256="0" * 64)}) == 3


def test_our_samples_are_scored_right_by_their_own_answers():
    from importlib.resources import files

    from evals import bfcl

    folder = files("evals.prompts")

    def rows(name):
        return read_rows(folder.joinpath(name).read_bytes(), name)

    problems = [gsm8k.question_of(row, number, "sample") for number, row in rows("gsm8k_sample.jsonl")]
    assert len(problems) == 6
    for question in problems:
        verdict = gsm8k.score(question.answer, question.answer.solution)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        assert (verdict.correct, verdict.lm_eval_strict, verdict.lm_eval_flexible) == (True, True, True)
    answers = bfcl.answers_by_id(rows("bfcl_simple_sample_answers.jsonl"), "answers")
    tools = [bfcl.question_of(row, n, "sample", answers) for n, row in rows("bfcl_simple_sample.jsonl")]
    assert len(tools) == 6
    for question in tools:
        accepted = answers[question.id][question.answer.function]  # pyright: ignore[reportAttributeAccessIssue]
        arguments = {name: next(value for value in values if value != "") for name, values in accepted.items()}
        if "contact" in arguments:
            arguments["contact"] = {key: values[0] for key, values in arguments["contact"].items()}
        sent = {"name": question.tools[0]["function"]["name"], "arguments": json.dumps(arguments)}  # pyright: ignore[reportOptionalSubscript, reportCallIssue, reportArgumentType, reportIndexIssue]
        assert bfcl.score(question.answer, [{"function": sent}]).correct, question.id  # pyright: ignore[reportArgumentType]
