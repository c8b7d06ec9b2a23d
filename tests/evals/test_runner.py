import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evals.cells import key_of
from evals.errors import WorkloadError
from evals.report import Cell, Report, report_schema
from evals.runner import run_unit
from evals.workload import plan_cells
from tests.evals.records import known, unit
from tests.evals.truth_server import TEMPLATE_TOKENS, TruthServer

SWEEP = {"kind": "sweep", "concurrency": [1, 3], "shapes": [{"input_len": 40, "output_len": 6}], "repeats": 2}
SPEED = {"kind": "speed", "prompts": ["code", "story"], "max_tokens": 8, "repeats": 2}
HELD_IN_THE_SECOND_CELL: dict[int, dict[str, Any]] = {2: {"stall_after": 2}}
"""Of a speed unit, whose first stream is the warm-up: what happens next happens in its second cell."""
TOKENIZER = {"request": {"tokenize_path": "/tokenize", "exact_length": {"ignore_eos": True}}}


def run(spec, run_dir, on_cell=None) -> Report:
    return asyncio.run(run_unit(spec, run_dir, on_cell))


LIMITED = (
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0})); "
    "runpy.run_module('evals', run_name='__main__', alter_sys=True)"
)


def command(run_dir: Path, largest_file: int | None = None) -> subprocess.Popen[str]:
    """`python -m evals`; with `largest_file` it meets a full disk there, as far as it can tell."""
    start = ["-m", "evals"] if largest_file is None else ["-c", LIMITED.format(largest_file)]
    return subprocess.Popen(
        [sys.executable, *start, str(run_dir)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(run_dir: Path, largest_file: int | None = None) -> tuple[int, str]:
    process = command(run_dir, largest_file)
    out, err = process.communicate(timeout=60)
    assert out == ""
    return process.returncode, err


def write_spec(run_dir: Path, spec) -> None:
    run_dir.mkdir(exist_ok=True)
    (run_dir / "spec.json").write_text(spec.model_dump_json())


def recorded(run_dir: Path) -> list[Cell]:
    """The finished lines; the last one may be on its way to the disk."""
    with contextlib.suppress(FileNotFoundError):
        lines = (run_dir / "cells.jsonl").read_bytes().split(b"\n")
        return [Cell.model_validate_json(line) for line in lines[:-1]]
    return []


def recorded_requests(run_dir: Path) -> Counter[int]:
    return Counter(json.loads(line)["cell"] for line in (run_dir / "requests.jsonl").read_text().splitlines())


def wait_for_cells(run_dir: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while len(recorded(run_dir)) < count:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def assert_each_cell_once(run_dir: Path, spec) -> None:
    plan = plan_cells(spec.work)
    assert [key_of(cell) for cell in recorded(run_dir)] == plan
    assert recorded_requests(run_dir) == {number: key.concurrency for number, key in enumerate(plan, 1)}


def test_a_speed_unit_sends_each_prompt_once_a_repeat_and_writes_its_report(tmp_path):
    with TruthServer(ttft_ms=20, gap_ms=2) as server:
        spec = unit(SPEED, base_url=server.base_url)
        report = run(spec, tmp_path)
        sent = [truth.body for truth in server.requests]
    assert (report.status, report.kind) == ("ok", "speed")
    assert_each_cell_once(tmp_path, spec)
    assert len(sent) == 1 + 4  # the warm-up and the cells
    assert all((cell.status, cell.output_tokens.got, cell.cached_tokens) == ("ok", 8, 0) for cell in report.cells)
    # How near these are to the server's truth is the client's test.
    assert all(known(cell.e2e_ms).p50 > known(cell.ttft_ms).p50 > 0 for cell in report.cells)
    assert [prompt.n for prompt in known(report.speed).prompts] == [2, 2]
    assert known(report.speed).geomean_decode_tok_s is not None
    assert Report.model_validate_json((tmp_path / "report.json").read_text()) == report


def test_a_sweep_sends_exact_unique_prompts_in_bursts(tmp_path):
    with TruthServer(ttft_ms=20, gap_ms=1) as server:
        spec = unit(SWEEP, base_url=server.base_url, endpoint=TOKENIZER)
        seen = []
        report = run(spec, tmp_path, lambda cell, number, total: seen.append((str(key_of(cell)), number, total)))
        truths = server.requests
    assert report.status == "ok"
    assert seen == [("c=1 40/6 #1", 1, 4), ("c=1 40/6 #2", 2, 4), ("c=3 40/6 #1", 3, 4), ("c=3 40/6 #2", 4, 4)]
    assert_each_cell_once(tmp_path, spec)
    measured = truths[-8:]
    assert {(truth.prompt_tokens, truth.output_tokens, truth.cached_tokens) for truth in measured} == {(40, 6, 0)}
    assert len({truth.body["messages"][0]["content"].split()[0] for truth in truths}) == len(truths)
    assert {cell.input_tokens.model_dump_json() for cell in report.cells} == {'{"asked":40,"got":40.0,"mismatched":0}'}
    assert {known(cell.client).peak_in_flight for cell in report.cells if cell.concurrency == 3} == {3}
    assert not [warning for warning in report.warnings if warning.startswith(("prompt length", "prefix cache"))]


def test_without_a_tokenizer_the_report_says_that_lengths_were_estimated(tmp_path):
    with TruthServer() as server:
        report = run(unit(SWEEP, base_url=server.base_url), tmp_path)
    assert any(warning.startswith("prompt lengths were estimated") for warning in report.warnings)
    assert {cell.input_tokens.got for cell in report.cells} == {40.0}


def test_what_cannot_be_held_is_infeasible_and_never_sent(tmp_path):
    shapes = [{"input_len": TEMPLATE_TOKENS, "output_len": 4}, {"input_len": 60, "output_len": 5}]
    work = SWEEP | {"shapes": [*shapes, {"input_len": 40, "output_len": 4}], "repeats": 1}
    with TruthServer() as server:
        report = run(unit(work, base_url=server.base_url, endpoint={**TOKENIZER, "context_tokens": 64}), tmp_path)
        prompts = [truth.prompt_tokens for truth in server.requests]
    assert [cell.status for cell in report.cells] == ["infeasible"] * 4 + ["ok"] * 2
    assert report.cells[0].reason == "a prompt of 7 tokens is shorter than the chat template and one word, which take 8"
    assert report.cells[2].reason == "60 + 5 = 65 tokens do not fit a context of 64"
    assert report.status == "ok"
    assert set(prompts[1:]) == {40}
    assert [failure.count for failure in report.failures] == [0] * 4


def test_a_unit_that_fits_nowhere_is_infeasible(tmp_path):
    with TruthServer() as server:
        spec = unit(SWEEP, base_url=server.base_url, endpoint={**TOKENIZER, "context_tokens": 32})
        assert run(spec, tmp_path).status == "infeasible"


def test_a_server_that_refuses_fails_every_cell_in_its_own_words(tmp_path):
    with TruthServer(status=500) as server:
        report = run(unit(SPEED, base_url=server.base_url), tmp_path)
    assert report.status == "failed"
    assert [cell.status for cell in report.cells] == ["failed"] * 4
    assert "http 500: the server minds" in known(report.reason)
    assert known(report.speed).missing["geomean_decode_tok_s"] == "no decode speed of code, story"


def test_a_prompt_longer_than_the_context_is_a_failed_cell_with_the_reason(tmp_path):
    with TruthServer(context_tokens=30) as server:
        report = run(unit(SPEED, base_url=server.base_url), tmp_path)
    assert "exceeds the available context size" in known(report.cells[0].reason)


def test_an_endpoint_that_dies_leaves_its_finished_cells_and_the_reason(tmp_path):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(TruthServer())

        def die_after_the_second(_cell, number, _total):
            if number == 2:
                stack.close()

        report = run(unit(SPEED, base_url=server.base_url), tmp_path, die_after_the_second)
    assert report.status == "failed"
    assert "is gone" in known(report.reason)
    assert [cell.status for cell in report.cells] == ["ok", "ok", "failed", "not_run"]
    assert report.cells[3].reason == report.reason
    assert len(recorded(tmp_path)) == 3
    assert recorded_requests(tmp_path) == {1: 1, 2: 1, 3: 1}


def test_an_endpoint_that_was_never_there_is_a_failed_report(tmp_path):
    with TruthServer() as server:
        pass  # its port is free again
    for kind, work in (("speed", SPEED), ("sweep", SWEEP)):
        report = run(unit(work, base_url=server.base_url), tmp_path / kind)
        assert report.status == "failed"
        assert "onnect" in known(report.reason)
        assert {cell.status for cell in report.cells} <= {"failed", "not_run"}


def test_an_endpoint_that_hangs_is_given_up_after_two_cells(tmp_path):
    with TruthServer(stall_after=-1) as server:
        report = run(unit(SPEED, base_url=server.base_url, idle_timeout_s=0.2), tmp_path)
    assert [cell.status for cell in report.cells] == ["failed", "failed", "not_run", "not_run"]
    assert "answers nothing" in known(report.reason)


def test_a_calibration_that_fails_is_a_failed_report_in_words(tmp_path):
    with TruthServer(usage="none") as server:
        report = run(unit(SWEEP, base_url=server.base_url), tmp_path)
    assert report.status == "failed"
    assert "include_usage" in known(report.reason)
    assert {cell.status for cell in report.cells} == {"not_run"}


def test_a_tokenizer_that_fails_later_fails_the_cell(tmp_path):
    with TruthServer() as server:
        endpoint = {"request": {"tokenize_path": "/no-such-path"}}
        report = run(unit(SWEEP, base_url=server.base_url, endpoint=endpoint), tmp_path)
    assert "no such path: /no-such-path" in known(report.reason)


def test_the_key_is_sent_and_stays_out_of_every_file(tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", "s3cret")
    with TruthServer() as server:
        run(unit(SPEED, base_url=server.base_url, endpoint={"api_key_env": "A_KEY"}), tmp_path)
        assert {truth.headers["authorization"] for truth in server.requests} == {"Bearer s3cret"}
    assert not [path for path in tmp_path.iterdir() if b"s3cret" in path.read_bytes()]


def test_a_missing_key_is_named_before_anything_is_sent(tmp_path):
    with pytest.raises(WorkloadError, match="variable NO_SUCH_KEY, which is not set"):
        run(unit(SPEED, endpoint={"api_key_env": "NO_SUCH_KEY"}), tmp_path)


def test_a_cancelled_unit_reports_its_finished_cells_and_goes_on_later(tmp_path):
    async def cancelled_in_the_second_cell(spec):
        task = asyncio.ensure_future(run_unit(spec, tmp_path, lambda *_: cancel_soon()))

        def cancel_soon():
            asyncio.get_running_loop().call_later(0.05, task.cancel)

        with pytest.raises(asyncio.CancelledError):
            await task

    with TruthServer(per_request=HELD_IN_THE_SECOND_CELL) as server:
        spec = unit(SPEED, base_url=server.base_url)
        asyncio.run(cancelled_in_the_second_cell(spec))
        partial = Report.model_validate_json((tmp_path / "report.json").read_text())
        assert server.disconnected.wait(10)
        first_start = len(server.requests)
        whole = run(spec, tmp_path)
        prompts = [truth.body["messages"][0]["content"] for truth in server.requests]
    assert partial.status == "cancelled"
    assert [cell.status for cell in partial.cells] == ["ok", "not_run", "not_run", "not_run"]
    assert whole.status == "ok"
    assert whole.cells[0] == partial.cells[0]
    assert whole.started_at == partial.started_at
    assert_each_cell_once(tmp_path, spec)
    # The cut-off cell's prompt may lie in the server's cache, so the second start has prompts of its own.
    assert first_start == 3
    assert not set(prompts[:first_start]) & set(prompts[first_start:])


def test_a_finished_unit_sends_nothing_again(tmp_path):
    with TruthServer() as server:
        spec = unit(SPEED, base_url=server.base_url)
        first = run(spec, tmp_path)
        sent = len(server.requests)
        again = run(spec, tmp_path)
        assert len(server.requests) == sent
    assert again.cells == first.cells
    assert again.finished_at == first.finished_at


def test_a_folder_with_another_unit_is_refused(tmp_path):
    with TruthServer() as server:
        run(unit(SPEED, base_url=server.base_url), tmp_path)
        with pytest.raises(WorkloadError, match="holds another unit"):
            run(unit(SPEED, base_url=server.base_url, seed=8), tmp_path)


@pytest.mark.parametrize("torn", ["cells.jsonl", "requests.jsonl"])
@pytest.mark.parametrize("cut", [1, 20])
def test_a_torn_last_line_is_cut_off_and_its_cell_run_again(tmp_path, torn, cut):
    with TruthServer() as server:
        spec = unit(SWEEP, base_url=server.base_url, endpoint=TOKENIZER)
        run(spec, tmp_path)
        sent = len(server.requests)
        # As a crash leaves it: requests are written before their cell.
        cells = (tmp_path / "cells.jsonl").read_bytes().splitlines(keepends=True)
        if torn == "cells.jsonl":
            cells[-1] = cells[-1][:-cut]
        else:
            cells.pop()
            requests = (tmp_path / "requests.jsonl").read_bytes()
            (tmp_path / "requests.jsonl").write_bytes(requests[:-cut])
        (tmp_path / "cells.jsonl").write_bytes(b"".join(cells))
        report = run(spec, tmp_path)
        assert len(server.requests) == sent + 1 + 3 + 3  # calibration, warm-up, the last cell
    assert report.status == "ok"
    assert_each_cell_once(tmp_path, spec)


def test_a_damaged_line_in_the_middle_costs_its_own_cell_only(tmp_path):
    with TruthServer() as server:
        spec = unit(SPEED, base_url=server.base_url)
        run(spec, tmp_path)
        lines = (tmp_path / "cells.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "cells.jsonl").write_bytes(b"".join([lines[0], b"\0" * 30 + b"\n", *lines[2:]]))
        report = run(spec, tmp_path)
    assert report.status == "ok"
    assert Counter(map(str, map(key_of, recorded(tmp_path)))) == Counter(map(str, plan_cells(spec.work)))
    assert recorded_requests(tmp_path) == {1: 1, 2: 1, 3: 1, 4: 1}


def test_killed_in_mid_run_it_runs_each_cell_exactly_once(tmp_path):
    # Streams: one to calibrate, three to warm up, then the cells of one request each, of which the third hangs.
    with TruthServer(per_request={6: {"stall_after": 2}}) as server:
        spec = unit(SWEEP | {"repeats": 3}, base_url=server.base_url, endpoint=TOKENIZER)
        write_spec(tmp_path, spec)
        with command(tmp_path) as process:
            wait_for_cells(tmp_path, 2, process)
            process.kill()
        assert process.returncode == -signal.SIGKILL
        before = recorded(tmp_path)
        assert len(before) == 2
        code, err = finished(tmp_path)
    assert code == 0, err
    assert_each_cell_once(tmp_path, spec)
    assert recorded(tmp_path)[: len(before)] == before
    report = Report.model_validate_json((tmp_path / "report.json").read_text())
    assert report.status == "ok"
    assert len(known(report.provenance["measured_by"])["starts"]) == 2  # type: ignore[index,call-overload]
    progress = [line for line in err.splitlines() if line.startswith("cell ")]
    assert len(progress) == 4
    assert progress[-1].startswith("cell 6/6 c=3 40/6 #3: ")
    assert " tok/s, ttft p50 " in progress[-1]


def test_terminated_it_leaves_a_cancelled_report_and_code_3(tmp_path):
    with TruthServer(per_request=HELD_IN_THE_SECOND_CELL) as server:
        write_spec(tmp_path, unit(SPEED, base_url=server.base_url))
        with command(tmp_path) as process:
            wait_for_cells(tmp_path, 1, process)
            process.terminate()
            _, err = process.communicate(timeout=60)
        assert server.disconnected.wait(10)
    assert process.returncode == 3, err
    assert "Traceback" not in err
    report = Report.model_validate_json((tmp_path / "report.json").read_text())
    assert report.status == "cancelled"
    assert [cell.status for cell in report.cells] == ["ok", "not_run", "not_run", "not_run"]


def test_a_full_disk_ends_with_code_4_and_damages_nothing(tmp_path):
    with TruthServer() as server:
        # A record of a reply of 200 tokens is above 5 KB: the first cell fits, the second does not.
        spec = unit(SPEED | {"max_tokens": 200}, base_url=server.base_url)
        write_spec(tmp_path, spec)
        code, err = finished(tmp_path, largest_file=6000)
        assert code == 4, err
        assert "No space left for" in err
        assert "Traceback" not in err
        before = recorded(tmp_path)
        assert recorded_requests(tmp_path) == dict.fromkeys(range(1, len(before) + 1), 1)
        code, err = finished(tmp_path)
    assert code == 0, err
    assert_each_cell_once(tmp_path, spec)
    assert recorded(tmp_path)[: len(before)] == before


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "Cannot read the unit"),
        ("", "is not a unit"),
        ("{", "is not a unit"),
        ('{"report_id": "r"}', "seed: Field required"),
        (unit(SPEED | {"max_tokens": 8}).model_dump_json().replace('"max_tokens":8', '"max_tokens":0'), "max_tokens"),
        (unit(SPEED).model_dump_json().replace('"story"', '"poem"'), "Unknown prompt 'poem'"),
    ],
)
def test_a_unit_that_cannot_be_read_is_code_2_and_one_line(tmp_path, content, expected):
    if content is not None:
        (tmp_path / "spec.json").write_text(content)
    code, err = finished(tmp_path)
    assert code == 2
    assert expected in err
    assert len(err.splitlines()) == 1


def test_two_processes_never_measure_into_one_folder(tmp_path):
    with TruthServer(per_request=HELD_IN_THE_SECOND_CELL) as server:
        write_spec(tmp_path, unit(SPEED, base_url=server.base_url))
        with command(tmp_path) as first:
            wait_for_cells(tmp_path, 1, first)
            code, err = finished(tmp_path)
            first.terminate()
            first.communicate(timeout=60)
    assert code == 2
    assert "Another process is measuring into" in err


def test_a_dead_endpoint_is_code_0_with_a_failed_report(tmp_path):
    with TruthServer() as server:
        pass
    write_spec(tmp_path, unit(SPEED, base_url=server.base_url))
    code, err = finished(tmp_path)
    assert code == 0
    assert err.splitlines()[-1].startswith("failed: The endpoint")
    assert Report.model_validate_json((tmp_path / "report.json").read_text()).status == "failed"


def test_the_schema_can_be_printed():
    printed = subprocess.run([sys.executable, "-m", "evals", "schema"], capture_output=True, text=True, check=True)
    assert printed.stdout == report_schema()


def test_the_command_without_a_folder_says_how_it_is_used():
    asked = subprocess.run([sys.executable, "-m", "evals"], capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stderr) == (2, "usage: python -m evals RUN_DIR | schema\n")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    write_spec(tmp_path, unit(SPEED))
    (tmp_path / "starts.log").mkdir()  # stops root as well, whom no mode stops
    code, err = finished(tmp_path)
    assert code == 2
    assert "Cannot write" in err
    assert "starts.log" in err


@pytest.mark.parametrize(
    "address",
    [
        "http://user:hunter2@host/",
        "http://user:hunter2@host:port/",
        "ftp://user:hunter2@host/",
        "http://host/?api_key=hunter2",
        "http://host:x/?api_key=hunter2",
        "http://host/#hunter2",
        "http://hunter2@[host/",
    ],
)
def test_an_address_with_a_secret_is_refused_before_anything_is_written(tmp_path, address):
    with pytest.raises(WorkloadError, match="http://host:port") as caught:
        run(unit(SPEED, base_url=address), tmp_path / "run")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_the_files_of_a_run_are_its_owners_alone_whatever_the_umask(tmp_path, umask):
    run_dir = tmp_path / "runs" / "r1"
    with TruthServer() as server:
        before = os.umask(umask)
        try:
            run(unit(SPEED, base_url=server.base_url), run_dir)
        finally:
            os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (run_dir, run_dir.parent, *run_dir.iterdir())}
    folders = {"r1": 0o700, "runs": 0o700}
    names = ("spec.json", "cells.jsonl", "requests.jsonl", "report.json", "starts.log", "lock")
    assert modes == folders | dict.fromkeys(names, 0o600)


def test_a_unit_that_others_could_read_is_made_private_and_a_folder_of_the_users_is_left(tmp_path):
    with TruthServer() as server:
        spec = unit(SPEED, base_url=server.base_url)
        write_spec(tmp_path, spec)
        (tmp_path / "spec.json").chmod(0o644)
        (tmp_path / "notes").touch(0o644)
        tmp_path.chmod(0o755)
        run(spec, tmp_path)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path, tmp_path / "notes", tmp_path / "spec.json")]
    assert modes == [0o755, 0o644, 0o600]
