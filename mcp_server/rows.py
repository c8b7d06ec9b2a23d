"""The values that the state keeps: jobs, rigs and what they serve, units, events."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from pydantic import Field, JsonValue

from rigs.facts import Border, RigFacts
from rigs.host_keys import SshAddress
from rigs.serving import Arm, Endpoint, LaunchPlan


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_finished(self) -> bool:
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class Job(Border):
    job_id: str
    kind: str
    rig: str | None
    args: dict[str, JsonValue]
    status: JobStatus
    cancel_requested: bool
    done: int | None
    total: int | None
    detail: str
    error: str | None
    result: dict[str, JsonValue] | None
    created_at: str
    started_at: str | None
    finished_at: str | None


class ServedEngine(Border):
    """The engine that runs on a rig, and all that a report says of it."""

    arm: Arm
    endpoint: Endpoint
    plan: LaunchPlan
    job_folder: str
    """Of the detached job on the rig that runs it."""
    started_at: str
    start_up_s: float | None = None
    warnings: tuple[str, ...] = ()


class RigRow(Border):
    name: str
    kind: str
    """`local` or `ssh`."""
    address: SshAddress | None = None
    """The way to an `ssh` rig."""
    rig_home: str
    """Absolute, on the rig."""
    python: str | None
    """The interpreter asked for at attach; None: the newest found."""
    facts: RigFacts
    served: ServedEngine | None = None
    attached_at: str
    used_at: str


class Unit(Border):
    unit_id: str
    job_id: str
    rig: str
    kind: str
    status: str
    folder: str
    """Where spec.json, cells.jsonl, report.json and requests.jsonl lie on this machine."""
    headline: str = ""
    created_at: str


class Event(Border):
    seq: int
    at: str
    message: str = Field(max_length=4000)


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
