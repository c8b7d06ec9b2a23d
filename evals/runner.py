"""One unit from its first cell to its report; resumable at every point."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from pydantic import JsonValue

from evals.address import Address, fixed_head
from evals.cells import cell_without_requests, measure_cell
from evals.errors import EndpointGoneError, EvalError, UnsupportedWorkError, WorkloadError
from evals.eval_run import EvalRun, rescore, with_scores
from evals.fitting import calibrate
from evals.journal import REQUESTS, Journal, open_journal
from evals.load import run_at_once
from evals.questions import Question, read_questions
from evals.record import Request, RequestRecord
from evals.report import Cell, Report
from evals.spec import EvalWork, SpeedWork, UnitSpec
from evals.speed import SpeedRun
from evals.stream_client import StreamClient
from evals.summary import EndedEarly, build_report
from evals.sweep import SweepRun
from evals.workload import GENERATOR_VERSION, CellKey, PromptSource, plan_cells

PROBE_TIMEOUT_S = 5.0
SILENT_CELLS = 2
"""Cells in a row without one answer after which the endpoint counts as hung: each costs a whole request timeout."""

OnCell = Callable[[Cell, int, int], None]
"""Called with a finished cell, its number from 1, and the total."""


class KindOfRun(Protocol):
    """What differs between the kinds of units."""

    def infeasible(self, key: CellKey) -> str | None:
        """Why the endpoint cannot hold this cell; None where it can."""
        ...

    async def warm_up(self, key: CellKey) -> list[Request]:
        """What is sent, and not recorded, before the first cell of a start."""
        ...

    async def requests(self, key: CellKey, ordinal: int) -> list[Request]:
        """What a cell sends at once. Raises: EvalError: it cannot be made."""
        ...


async def run_unit(spec: UnitSpec, run_dir: Path, on_cell: OnCell | None = None) -> Report:
    """Run the cells that `run_dir` has not recorded, then write and return the report.

    A failing endpoint is a report with status `failed`, not an error. Cancelled, it drops the cell in progress, writes
    a report of the finished ones with status `cancelled`, and lets the cancellation through.

    Raises:
        WorkloadError: the unit cannot be run as it is, or the folder holds another one.
        RigFullError: the disk is full; nothing recorded is damaged.
    """
    plan = plan_cells(spec.work)
    headers = _headers(spec)
    # Before the first file: an address that is refused may hold a password.
    fixed_head(Address.parse(spec.endpoint.base_url), headers)
    with open_journal(run_dir, spec, plan, _now()) as journal:
        questions: list[Question] = []
        if isinstance(spec.work, EvalWork):
            questions = read_questions(run_dir, spec.work)
            rescore(journal, questions)
        ended: EndedEarly | None = None
        try:
            await _run_cells(spec, plan, journal, headers, questions, on_cell)
        except asyncio.CancelledError:
            done = len(journal.cells)
            _conclude(
                spec, journal, EndedEarly(status="cancelled", reason=f"cancelled after {done} of {len(plan)} cells")
            )
            raise
        except UnsupportedWorkError as error:
            ended = EndedEarly(status="unsupported", reason=str(error))
        except EvalError as error:
            ended = EndedEarly(status="failed", reason=str(error))
        return _conclude(spec, journal, ended)


def _conclude(spec: UnitSpec, journal: Journal, ended: EndedEarly | None) -> Report:
    report = build_report(
        spec,
        journal.cells,
        started_at=journal.starts[0],
        requests_path=REQUESTS,
        provenance=_provenance(spec, journal),
        ended=ended,
    )
    journal.write_report(report)
    return report


async def _run_cells(
    spec: UnitSpec,
    plan: Sequence[CellKey],
    journal: Journal,
    headers: dict[str, str],
    questions: Sequence[Question],
    on_cell: OnCell | None,
) -> None:
    pending = [(ordinal, key) for ordinal, key in enumerate(plan, 1) if key not in journal.cells]
    if not pending:
        return
    silent = 0
    async with StreamClient(
        spec.endpoint.base_url, headers=headers, stream_keys=spec.endpoint.request.stream_keys
    ) as client:
        run = await _prepare(client, spec, PromptSource(spec.seed, start=len(journal.starts)), questions)
        warm = False
        for ordinal, key in pending:
            started_at = _now()
            why_not = run.infeasible(key)
            if why_not is not None:
                cell, records = cell_without_requests(key, "infeasible", why_not, finished_at=started_at), []
            else:
                if not warm:
                    await _warm_up(client, run, key)
                    warm = True
                cell, records = await _run_cell(client, run, key, ordinal, started_at)
            results = run.results(key, ordinal, records) if isinstance(run, EvalRun) else []
            cell = with_scores(cell, results)
            journal.record(cell, records, results)
            if on_cell is not None:
                on_cell(cell, ordinal, len(plan))
            if records and not cell.requests.ok:
                silent = silent + 1 if _silent(records) else 0
                await _check_alive(spec, cell, silent)
            else:
                silent = 0


async def _prepare(
    client: StreamClient, spec: UnitSpec, prompts: PromptSource, questions: Sequence[Question]
) -> KindOfRun:
    if isinstance(spec.work, SpeedWork):
        return SpeedRun(spec=spec, prompts=prompts)
    if isinstance(spec.work, EvalWork):
        run = EvalRun.of(spec, spec.work, questions)
        await run.check_support(client)
        return run
    return SweepRun(spec=spec, prompts=prompts, fitter=await calibrate(client, spec, prompts))


async def _warm_up(client: StreamClient, run: KindOfRun, key: CellKey) -> None:
    with contextlib.suppress(EvalError):  # it shows itself in the first cell, and is recorded there
        requests = await run.warm_up(key)
        if requests:
            await run_at_once(client, requests, len(requests))


async def _run_cell(
    client: StreamClient, run: KindOfRun, key: CellKey, ordinal: int, started_at: str
) -> tuple[Cell, list[RequestRecord]]:
    count = key.concurrency
    try:
        requests = await run.requests(key, ordinal)
        count = len(requests)
        load = await run_at_once(client, requests, key.concurrency)
    except EvalError as error:
        unsent = [
            RequestRecord(id=f"{ordinal}-{number}", status="failed", reason=f"not sent: {error}")
            for number in range(count)
        ]
        return measure_cell(key, unsent, started_at=started_at, finished_at=_now()), unsent
    cell = measure_cell(key, load.records, client=load.check, started_at=started_at, finished_at=_now())
    return cell, list(load.records)


def _silent(records: Sequence[RequestRecord]) -> bool:
    """Nothing but time-outs and broken connections; a server that refuses a request is alive."""
    return all(record.http_status is None or record.http_status < 400 for record in records)


async def _check_alive(spec: UnitSpec, cell: Cell, silent: int) -> None:
    """After a cell without one success. Raises: EndpointGoneError: going on would only collect failures."""
    url = urlsplit(spec.endpoint.base_url)
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(url.hostname, port)
    except (OSError, TimeoutError) as error:
        refused = "it did not accept a connection in time" if isinstance(error, TimeoutError) else str(error)
        raise EndpointGoneError(
            f"The endpoint {url.hostname}:{port} is gone: {cell.reason}; then {refused}. See the engine's log, start "
            f"it again, and run the same unit to go on."
        ) from error
    writer.close()
    if silent >= SILENT_CELLS:
        raise EndpointGoneError(
            f"The endpoint {url.hostname}:{port} takes connections and answers nothing: {silent} cells in a row "
            f"without one reply ({cell.reason}). See the engine's log."
        )


def _headers(spec: UnitSpec) -> dict[str, str]:
    name = spec.endpoint.api_key_env
    if name is None:
        return {}
    key = os.environ.get(name)
    if not key:
        raise WorkloadError(f"The endpoint's key should be in the environment variable {name}, which is not set.")
    return {"Authorization": f"Bearer {key}"}


def _provenance(spec: UnitSpec, journal: Journal) -> dict[str, JsonValue]:
    endpoint = spec.endpoint
    return {
        "endpoint": {
            "base_url": endpoint.base_url,
            "model": endpoint.model,
            "context_tokens": endpoint.context_tokens,
            "parallel": endpoint.parallel,
            "request_body": endpoint.request.body,
            "exact_length": endpoint.request.exact_length,
            "tokenize_path": endpoint.request.tokenize_path,
        },
        "measured_by": {
            "rigbench": _version(),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "event_loop": type(asyncio.get_running_loop()).__module__,
            "prompt_generator": GENERATOR_VERSION,
            "starts": list(journal.starts),
        },
    }


def _version() -> str | None:
    try:
        return metadata.version("rigbench")
    except metadata.PackageNotFoundError:  # run from a folder that was copied, not installed
        return None


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
