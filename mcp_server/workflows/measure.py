"""Measuring what a rig serves: the unit is written down, run on the rig, followed, and its report fetched."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from evals.eval_run import describe_score
from evals.journal import RESULTS
from evals.questions import ITEMS
from evals.report import Failure, Report
from evals.spec import UnitSpec, Work
from evals.workload import plan_cells
from mcp_server.question_source import QuestionSource
from mcp_server.questions import load_questions
from mcp_server.rows import RigRow, Unit, utc_now
from mcp_server.version import VERSION
from mcp_server.workflows.context import RunningJob, connect
from mcp_server.workflows.engine import engine_is_alive, why_it_ended
from mcp_server.workflows.install import prepare
from rigs.connection import Connection
from rigs.errors import CommandError, RemoteError, UsageError
from rigs.remote_job import JobState, RemoteJob
from rigs.serving import Step

ATTEMPTS = 5
"""How often a measuring process that was killed is started again without one more cell; each goes on after the last."""


async def plan_unit(running: RunningJob) -> None:
    """Write the unit's spec, here and on the rig; a second call keeps the first's."""
    rig = running.rig()
    folder = unit_folder(running)
    if rig.served is None:
        raise UsageError(f"Nothing is served on {rig.name!r}. Call serve_engine(rig={rig.name!r}, ...) first.")
    connection = connect(rig, running.config)
    try:
        if not await engine_is_alive(connection, rig.served):
            log = await RemoteJob(connection, rig.served.job_folder).log_tail()
            running.state.set_served(rig.name, None)
            raise RemoteError(
                f"{rig.served.arm.engine} on {rig.name!r} is no longer running: {why_it_ended(log, rig.served.plan)} "
                "Call serve_engine again."
            )
        path = folder / "spec.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            work, told = await _work(running, folder)
            spec = UnitSpec(
                report_id=running.job_id,
                seed=int(str(running.job.args["seed"])),
                arm=rig.served.arm,
                endpoint=rig.served.endpoint,
                work=work,
                provenance={**_provenance(rig), **told},
            )
            temporary = path.with_suffix(".part")
            temporary.write_text(spec.model_dump_json(indent=1), encoding="utf-8")
            temporary.replace(path)
        await prepare(running, rig, connection)
        if (folder / ITEMS).exists():
            await connection.put(folder / ITEMS, f"{rig_folder(running, rig)}/{ITEMS}")
        await connection.put(path, f"{rig_folder(running, rig)}/spec.json", mode=0o600)
    finally:
        await connection.close()
    _put_unit(running, rig, "running")


async def _work(running: RunningJob, folder: Path) -> tuple[Work, dict[str, JsonValue]]:
    """What is measured, and what the report says of where it came from. An eval's questions are laid into `folder`.

    Raises:
        RigsError: the questions cannot be had.
    """
    args = running.job.args
    if "questions" not in args:
        return TypeAdapter[Work](Work).validate_python(args["work"]), {}
    source = QuestionSource.model_validate(args["questions"])
    running.say(f"loading the questions of {source.dataset} ({source.source})")
    loaded = await asyncio.to_thread(load_questions, source, running.config.home / "cache" / "questions")
    (folder / ITEMS).write_bytes(loaded.content)
    wanted = TypeAdapter(dict[str, int | None]).validate_python(args["work"])
    work = loaded.work(
        limit=wanted["limit"], concurrency=wanted["concurrency"] or 1, max_tokens=wanted["max_tokens"] or 1
    )
    return work, loaded.provenance


async def run_unit(running: RunningJob) -> None:
    """Start or find the measuring process and follow it; the report is fetched however it ends.

    Raises:
        RemoteError: it could not be brought to an end.
        JobCancelled: as asked; the finished cells are kept.
    """
    rig = running.rig()
    connection = connect(rig, running.config)
    try:
        python = await prepare(running, rig, connection)
        remote = RemoteJob(connection, f"{rig.rig_home}/jobs/{running.job_id}-measure")
        argv = (python.python, "-m", "evals", rig_folder(running, rig))
        state = await _follow(running, rig, connection, remote, Step(name="measure", argv=argv, env=python.env))
        await _fetch(running, rig, connection)
        if state.exit_code != 0:
            raise RemoteError(
                f"Measuring on {rig.name!r} ended with {_ending(state)}. The finished cells are kept in "
                f"{unit_folder(running)}. The end of its log:\n{(await remote.log_tail(1500)).strip()}"
            )
    finally:
        await connection.close()


async def keep_what_there_is(running: RunningJob, rig: RigRow, connection: Connection) -> None:
    """Fetch the finished cells of a run that was ended, with a report of them."""
    if (unit_folder(running) / "spec.json").exists():
        await _fetch(running, rig, connection)


async def _follow(running: RunningJob, rig: RigRow, connection: Connection, remote: RemoteJob, step: Step) -> JobState:
    spec = UnitSpec.model_validate_json((unit_folder(running) / "spec.json").read_text(encoding="utf-8"))
    total = len(plan_cells(spec.work))
    cells = unit_folder(running) / "cells.jsonl"
    running.say(f"measuring {total} cells", done=0, total=total)

    async def progress() -> None:
        await running.mirror(f"{rig_folder(running, rig)}/cells.jsonl", cells, connection)
        last = (await remote.log_tail(300)).strip().splitlines()
        detail = last[-1][:200] if last else "starting"
        running.state.set_progress(running.job_id, done=count_lines(cells), total=total, detail=detail)

    recorded, fruitless = 0, 0
    while True:
        await remote.start_or_attach([step], again_if_killed=True)
        state = await running.watch(remote, connection, progress)
        if not state.was_killed:
            return state
        fruitless = fruitless + 1 if count_lines(cells) <= recorded else 0
        recorded = count_lines(cells)
        if fruitless == ATTEMPTS:
            return state
        running.say(f"the measuring process was killed after {recorded} cells; it goes on after the last one")
        # A copy that was read while the last line was being written may hold a part of it.
        cells.unlink(missing_ok=True)


async def _fetch(running: RunningJob, rig: RigRow, connection: Connection) -> None:
    """Bring what was recorded, whatever there is; then write down what the report says."""
    folder = unit_folder(running)
    names = ["cells.jsonl", "requests.jsonl", "report.json"]
    if (folder / ITEMS).exists():
        names.insert(2, RESULTS)
    for name in names:
        try:
            await connection.get(f"{rig_folder(running, rig)}/{name}", folder / name)
        except CommandError:
            running.say(f"there is no {name}")
    if rig.served:
        await running.mirror(f"{rig.served.job_folder}/log", folder / "engine.log", connection)
    report = await _complete(running, rig, connection)
    if report is None:
        _put_unit(running, rig, "failed")
        return
    _put_unit(running, rig, report.status, headline(report))
    running.say(f"report {report.report_id}: {headline(report)}")


async def _complete(running: RunningJob, rig: RigRow, connection: Connection) -> Report | None:
    """Add to the report what the measuring process could not see: the engine's own end and its warnings."""
    path = unit_folder(running) / "report.json"
    try:
        report = Report.model_validate_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError) as error:
        running.say(f"the report cannot be read: {str(error)[:300]}")
        return None
    if rig.served is None:
        return report
    warnings = [*report.warnings, *(word for word in rig.served.warnings if word not in report.warnings)]
    failures = list(report.failures)
    if not await engine_is_alive(connection, rig.served):
        log = await RemoteJob(connection, rig.served.job_folder).log_tail()
        reason = f"the engine ended during the run: {why_it_ended(log, rig.served.plan)}"
        running.say(reason)
        if all(failure.reason != reason for failure in failures):
            failures.insert(0, Failure(where="engine", reason=reason, count=0))
        running.state.set_served(rig.name, None)
    report = report.model_copy(update={"warnings": warnings, "failures": failures})
    temporary = path.with_suffix(".part")
    temporary.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
    return report


def headline(report: Report) -> str:
    """Say in a few words what came out."""
    if report.status != "ok":
        return f"{report.status}: {report.reason}" if report.reason else report.status
    figure = _main_figure(report)
    return f"{figure} (client_limited: read the warnings)" if _client_limited(report) else figure


def _client_limited(report: Report) -> bool:
    return report.client is not None and report.client.verdict == "client_limited"


def _main_figure(report: Report) -> str:
    if report.speed is not None:
        speed = report.speed.geomean_decode_tok_s
        words = f"{speed:.1f} tok/s decode at one request" if speed is not None else "no decode speed"
        kept = report.speed.acceptance
        return f"{words}, {kept.share:.0%} of drafted tokens kept" if kept else words
    if report.eval is not None:
        return describe_score(report.eval)
    best = max(report.cells, key=lambda cell: cell.total_output_tok_s or 0.0, default=None)
    if best is None or best.total_output_tok_s is None:
        return "no throughput"
    shape = f"{best.input_len}/{best.output_len}"
    return f"best {best.total_output_tok_s:.1f} tok/s in all, at {best.concurrency} requests of {shape}"


def unit_folder(running: RunningJob) -> Path:
    """Where the unit lies on this machine. One job is one unit until there are comparisons."""
    return running.folder / running.job_id


def rig_folder(running: RunningJob, rig: RigRow) -> str:
    return f"{rig.rig_home}/runs/{running.job_id}"


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _put_unit(running: RunningJob, rig: RigRow, status: str, words: str = "") -> None:
    running.state.put_unit(
        Unit(
            unit_id=running.job_id,
            job_id=running.job_id,
            rig=rig.name,
            kind=running.job.kind,
            status=status,
            folder=str(unit_folder(running)),
            headline=words,
            created_at=running.job.created_at,
        )
    )


def _provenance(rig: RigRow) -> dict[str, JsonValue]:
    assert rig.served
    return {
        "rigbench_version": VERSION,
        "rig_facts": rig.facts.model_dump(mode="json"),
        "engine_env": {**rig.served.plan.env},
        "engine_started_at": rig.served.started_at,
        "engine_start_up_s": rig.served.start_up_s,
        "context_tokens": rig.served.endpoint.context_tokens,
        "parallel": rig.served.endpoint.parallel,
        "planned_at": utc_now(),
    }


def _ending(state: JobState) -> str:
    return "no exit code: it was killed again and again" if state.status == "lost" else f"exit code {state.exit_code}"
