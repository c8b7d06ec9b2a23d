"""The durable workflows: one per job, named by the job's id, of few steps.

A step that was running when the worker died runs again from its start. Each is written for that: it finds what it had
started on the rig by the job's id, and our tables by what they hold. Nothing is passed from step to step but that it
is done.

Never cancel a workflow through the workflow engine: that would skip its clean-up. A cancel is a flag in the job's row.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable

from dbos import DBOS

from mcp_server.rows import JobStatus
from mcp_server.workflows import engine, install, measure, render, rig
from mcp_server.workflows.context import JobCancelled, RunningJob
from rigs.errors import RigsError, UnreachableError

log = logging.getLogger(__name__)

Step = Callable[[RunningJob], Awaitable[dict[str, object] | None]]

STEPS: dict[str, tuple[Step, ...]] = {
    "attach": (rig.attach,),
    "probe": (rig.look,),
    "detach": (rig.detach,),
    "build": (install.build,),
    "serve": (engine.serve,),
    "stop": (engine.stop,),
    "render": (render.render_report,),
    "speed": (measure.plan_unit, measure.run_unit),
    "sweep": (measure.plan_unit, measure.run_unit),
    "eval": (measure.plan_unit, measure.run_unit),
}
"""What each kind of job does, in order; the last result that is not None is the job's."""


PATIENCE_S = 15 * 60.0
"""How long a rig that was there may be away before the job gives up; what runs on it goes on, and is found again."""
LOOK_PATIENCE_S = 5.0
"""The same for a first look, where somebody waits for the answer."""


executing: set[str] = set()
"""Jobs whose workflow is at work in this process. One that is neither here nor finished was lost to a full disk."""


@DBOS.workflow()
async def run_job(job_id: str) -> None:
    """Do the steps of a job, then write down how it ended."""
    executing.add(job_id)
    try:
        kind = RunningJob(job_id).job.kind
        for number in range(len(STEPS[kind])):
            if not await run_step(job_id, number):
                return
        await finish(job_id)
    finally:
        executing.discard(job_id)


@DBOS.step()
async def run_step(job_id: str, number: int) -> bool:
    """Do one step; False where the job is over, with its reason written down."""
    running = RunningJob(job_id)
    if running.job.status.is_finished:
        return False
    try:
        result = await _patiently(running, STEPS[running.job.kind][number])
    except JobCancelled:
        await _tidy(running)
        running.say("cancelled")
        running.state.finish_job(job_id, JobStatus.CANCELLED, error="Cancelled as asked.")
        return False
    except Exception as error:  # noqa: BLE001 - the one place around a step: it ends this job, and not the worker
        words = in_words(error)
        await _tidy(running)
        running.say(f"failed: {words}")
        running.state.finish_job(job_id, JobStatus.FAILED, error=words)
        return False
    if result is not None:
        running.state.set_result(job_id, result)
    return True


@DBOS.step()
async def finish(job_id: str) -> None:
    RunningJob(job_id).state.finish_job(job_id, JobStatus.DONE)


async def _tidy(running: RunningJob) -> None:
    """After a job that did not end well: leave nothing of it running, and keep what it had measured."""
    if running.job.kind in ("attach", "render"):
        return
    try:
        rig, connection = running.connect()
    except RigsError:
        return  # the rig is not there any more, and so nothing of ours on it
    try:
        await running.end_what_it_started(connection)
        if STEPS[running.job.kind][-1] is measure.run_unit:
            await measure.keep_what_there_is(running, rig, connection)
    except (RigsError, OSError) as error:
        running.say(f"it could not be tidied up: {error}")
    finally:
        await connection.close()


async def _patiently(running: RunningJob, step: Step) -> dict[str, object] | None:
    """Do a step, and again while the way to the rig is broken: it may run twice, and a laptop's lid closes."""
    began = time.monotonic()
    tries = 0
    while True:
        running.check_cancelled()
        try:
            return await step(running)
        except UnreachableError as error:
            tries += 1
            patience_s = LOOK_PATIENCE_S if running.job.kind in ("attach", "probe") else PATIENCE_S
            if time.monotonic() - began > patience_s:
                raise
            running.say(f"{error} Trying again ({tries}).")
            for _ in range(min(5 * tries, 60)):
                running.check_cancelled()
                await asyncio.sleep(0.5)


def in_words(error: Exception) -> str:
    """Say what ended a job. A fault of ours goes to the log as well, with its traceback."""
    if isinstance(error, RigsError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk of this machine is full ({error.filename}). What was recorded is kept: free some, go on."
    log.error("A fault of rigbench", exc_info=error)
    return f"A fault in rigbench ({type(error).__name__}: {str(error)[:300]}). The worker's log has the details."
