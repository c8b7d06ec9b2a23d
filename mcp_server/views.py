"""What tools return: small, complete, with units in the names, and the next step where one follows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, Field, JsonValue

from mcp_server.rows import Job, JobStatus, RigRow

FinalStatus = Literal["queued", "running", "done", "failed", "cancelled"]


class JobView(BaseModel):
    job_id: str
    kind: str
    rig: str | None
    status: FinalStatus
    done: int | None = Field(default=None, description="Cells finished so far.")
    total: int | None = None
    detail: str = ""
    elapsed_s: float | None = None
    error: str | None = None
    result: dict[str, JsonValue] | None = None
    next_step: str = ""


def job_view(job: Job) -> JobView:
    return JobView(
        job_id=job.job_id,
        kind=job.kind,
        rig=job.rig,
        status=job.status.value,
        done=job.done,
        total=job.total,
        detail=job.detail,
        elapsed_s=_elapsed_s(job),
        error=job.error,
        result=job.result,
        next_step=_next_step(job),
    )


def _elapsed_s(job: Job) -> float | None:
    if job.started_at is None:
        return None
    end = datetime.fromisoformat(job.finished_at) if job.finished_at else datetime.now(UTC)
    return round((end - datetime.fromisoformat(job.started_at)).total_seconds(), 1)


def _next_step(job: Job) -> str:
    measuring = job.kind in ("speed", "sweep", "eval")
    match job.status:
        case JobStatus.QUEUED | JobStatus.RUNNING:
            left = _time_left(job)
            return f"wait_for_job(job_id={job.job_id!r}){left}"
        case JobStatus.DONE if measuring:
            return f"get_report(report_id={job.job_id!r})"
        case JobStatus.DONE if job.kind == "serve":
            return f"run_speed(rig={job.rig!r}) or run_sweep(rig={job.rig!r}); at the end stop_engine(rig={job.rig!r})"
        case JobStatus.DONE if job.kind == "attach":
            return f"list_engines(rig={job.rig!r}), then serve_engine(rig={job.rig!r}, ...)"
        case JobStatus.DONE if job.kind == "render" and job.args.get("format") == "png":
            other = f", against={job.args['against']!r}" if job.args.get("against") else ""
            return f"render_report(report_id={job.args['report_id']!r}, format='png'{other}) shows the charts"
        case JobStatus.FAILED:
            return f"read_job_log(job_id={job.job_id!r})"
        case JobStatus.CANCELLED if measuring:
            return f"get_report(report_id={job.job_id!r}) shows the finished cells"
        case _:
            return ""


def _time_left(job: Job) -> str:
    """Estimate from the share that is done; nothing where nothing is."""
    elapsed_s = _elapsed_s(job)
    if not job.done or not job.total or elapsed_s is None:
        return ""
    left_s = elapsed_s / job.done * (job.total - job.done)
    return f"; about {left_s / 60:.0f} min left" if left_s > 90 else f"; about {left_s:.0f} s left"


class AcceleratorView(BaseModel):
    name: str
    memory_mib: int | None
    architecture: str | None


class ServedView(BaseModel):
    engine: str | None
    engine_version: str | None
    checkpoint: str | None
    drafter: str | None
    draft_tokens: int | None
    base_url: str
    context_tokens: int | None
    parallel: int | None
    started_at: str


class RigView(BaseModel):
    name: str
    kind: str
    address: str | None
    rig_home: str
    accelerators: list[AcceleratorView]
    cpu_model: str | None
    cpu_count: int | None
    memory_mib: int | None
    disk_free_mib: int | None
    os_release: str | None
    python: str | None
    nvidia_driver: str | None
    served: ServedView | None
    next_step: str = ""


def rig_view(rig: RigRow) -> RigView:
    facts, served = rig.facts, rig.served
    view = None
    if served:
        drafter = served.arm.drafter
        view = ServedView(
            engine=served.arm.engine,
            engine_version=served.arm.engine_version,
            checkpoint=served.arm.checkpoint.name if served.arm.checkpoint else None,
            drafter=(drafter.model.name if drafter.model else drafter.method) if drafter else None,
            draft_tokens=served.arm.draft_tokens,
            base_url=served.endpoint.base_url,
            context_tokens=served.endpoint.context_tokens,
            parallel=served.endpoint.parallel,
            started_at=served.started_at,
        )
    return RigView(
        name=rig.name,
        kind=rig.kind,
        address=str(rig.address) if rig.address else None,
        rig_home=rig.rig_home,
        accelerators=[
            AcceleratorView(name=a.name, memory_mib=a.memory_mib, architecture=a.architecture)
            for a in facts.accelerators
        ],
        cpu_model=facts.cpu_model,
        cpu_count=facts.cpu_count,
        memory_mib=facts.memory_mib,
        disk_free_mib=facts.disk_free_mib,
        os_release=facts.os_release,
        python=facts.python.version if facts.python else None,
        nvidia_driver=facts.nvidia_driver,
        served=view,
        next_step=f"run_speed(rig={rig.name!r})" if served else f"serve_engine(rig={rig.name!r}, ...)",
    )
