"""The worker: one detached process per state directory that runs every job as a durable workflow.

It lives on when servers and clients die, ends itself after an idle hour, and may be killed at any moment: the next one
goes on where it was.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dbos import DBOS, SetWorkflowID

from mcp_server.config import Config
from mcp_server.rows import JobStatus
from mcp_server.state import State, StateError
from mcp_server.version import VERSION
from mcp_server.workflows.context import WorkerContext, install
from mcp_server.workflows.run import executing, run_job

logger = logging.getLogger(__name__)

POLL_S = 0.1
HOUSEKEEPING_S = 5.0
APPLICATION_VERSION = "1"
"""Of the workflows' steps. Anything else would strand unfinished jobs at an upgrade: jobs of another version wait."""
EXECUTOR = "worker"
"""One worker per state directory, so one name: a restarted worker takes up what the dead one left."""
OVER = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")


@dataclass
class Worker:
    config: Config
    state: State
    stop: threading.Event = field(default_factory=threading.Event)
    busy_at: float = field(default_factory=time.monotonic)
    missing: set[str] = field(default_factory=set[str])
    """Jobs that were at work nowhere when last looked at; one that is so twice is not merely between two acts."""

    def run(self) -> None:
        """Take jobs until stopped or idle for too long."""
        housekept = 0.0
        while not self.stop.wait(POLL_S):
            try:
                self.dispatch()
                if time.monotonic() - housekept > HOUSEKEEPING_S:
                    housekept = time.monotonic()
                    self.close_abandoned()
                    self.stop_idle_engines(datetime.now(UTC))
            except (StateError, ValueError):
                # A full disk, most likely, or a row that somebody damaged. What runs goes on; new jobs wait until it
                # can be written that they began.
                logger.exception("The state cannot be used")
                self.stop.wait(HOUSEKEEPING_S)
            if self.is_idle():
                logger.info("Nothing to do for %s minutes: ending", self.config.worker_idle_min)
                return

    def recover(self) -> None:
        """Start what is marked as running: a job that a dead worker had begun goes on, any other begins."""
        for job_id in self.state.running():
            start(job_id)

    def dispatch(self) -> None:
        for job in self.state.take_next():
            logger.info("Starting %s", job.job_id)
            start(job.job_id)

    def close_abandoned(self) -> None:
        """Go on with jobs that a full disk threw out; fail those whose workflow is over without having said so."""
        running = self.state.running()
        lost = {job_id for job_id in running if job_id not in executing}
        for job_id in lost & self.missing:
            logger.warning("%s is at work nowhere: going on with it", job_id)
            DBOS.resume_workflow(job_id)
        self.missing = lost
        if running:
            self.busy_at = time.monotonic()
            for workflow in DBOS.list_workflows(workflow_ids=running, status=list(OVER)):
                self.state.finish_job(
                    workflow.workflow_id,
                    JobStatus.FAILED,
                    error=f"Its workflow ended as {workflow.status}. The worker's log has the details.",
                )

    def stop_idle_engines(self, now: datetime) -> None:
        """Queue a stop for every engine that no job has used for `idle_stop_min`."""
        for rig in self.state.rigs():
            if rig.served is None:
                continue
            self.busy_at = time.monotonic()
            idle_min = (now - datetime.fromisoformat(rig.used_at)).total_seconds() / 60
            if idle_min > self.config.idle_stop_min and not self.state.jobs(rig=rig.name, unfinished=True):
                job_id = self.state.add_job("stop", rig.name, {})
                self.state.add_event(job_id, f"no job for {idle_min:.0f} minutes: stopping {rig.served.arm.engine}")

    def is_idle(self) -> bool:
        return time.monotonic() - self.busy_at > self.config.worker_idle_min * 60


def start(job_id: str) -> None:
    """Start the workflow of a job; one that was started before is not started again."""
    with SetWorkflowID(job_id):
        DBOS.start_workflow(run_job, job_id)


def serve(config: Config, on_ready: Callable[[], None]) -> int:
    """Run jobs until stopped or idle; the caller holds the worker's lock."""
    state = State(config.database)
    install(WorkerContext(config=config, state=state))
    worker = Worker(config, state)

    def end(*_: object) -> None:
        worker.stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    DBOS(
        config={
            "name": "rigbench",
            "system_database_url": f"sqlite:///{config.worker_folder / 'workflows.db'}",
            "application_version": APPLICATION_VERSION,
            "executor_id": EXECUTOR,
            "log_level": "WARNING",
        }
    )
    DBOS.launch()
    worker.recover()
    on_ready()
    logger.info("Ready: rigbench %s, process %s", VERSION, os.getpid())
    worker.run()
    logger.info("Ending")
    # At once, as if killed: the running jobs are durable, and waiting for them could take hours.
    logging.shutdown()
    os._exit(0)
