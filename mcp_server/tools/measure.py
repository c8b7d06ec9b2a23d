"""Measuring what a rig serves."""

from __future__ import annotations

import secrets
from typing import Annotated

from mcp.server.mcpserver import Context
from pydantic import Field

from evals.spec import MAX_CONCURRENCY, Dataset, Shape, SpeedWork, SweepWork
from evals.workload import plan_cells
from mcp_server.app import App, app_of
from mcp_server.edge import tool
from mcp_server.question_source import QuestionSource, check_source
from mcp_server.tools.rigs import RigName
from mcp_server.views import JobView, job_view
from rigs.errors import UsageError

Seed = Annotated[int | None, Field(description="Makes the prompts; null: a new one, so that no cache can hit.")]


@tool("Measure speed")
def run_speed(
    ctx: Context[App],
    rig: RigName,
    prompts: Annotated[
        list[str] | None, Field(description="Of code, advice, story, explanation, facts, summary; null: all.")
    ] = None,
    max_tokens: Annotated[int, Field(description="Tokens per reply.")] = 256,
    repeats: int = 3,
    seed: Seed = None,
) -> JobView:
    """Measure one request at a time on what the rig serves: chat prompts x repeats, greedy.

    Gives decode tok/s per prompt, their geometric mean, TTFT, and the drafter's kept share. Runs detached on the rig.
    """
    work = SpeedWork(max_tokens=max_tokens, repeats=repeats)
    if prompts is not None:
        work = SpeedWork(prompts=tuple(prompts), max_tokens=max_tokens, repeats=repeats)
    return _measure(app_of(ctx), rig, work, seed)


@tool("Measure a load sweep")
def run_sweep(
    ctx: Context[App],
    rig: RigName,
    concurrency: Annotated[list[int] | None, Field(description="Requests at once; null: 1, 2, 4 ... 64.")] = None,
    shapes: Annotated[
        list[str] | None, Field(description="'INPUT/OUTPUT' in tokens; null: '512/128' and '128/512'.")
    ] = None,
    repeats: int = 5,
    seed: Seed = None,
) -> JobView:
    """Measure throughput and latency under load on what the rig serves: bursts of unique prompts of exact length.

    Serve with `parallel` at least the highest concurrency. Runs detached on the rig; finished cells are never lost.
    """
    given: dict[str, object] = {"repeats": repeats}
    if concurrency is not None:
        given["concurrency"] = tuple(concurrency)
    if shapes is not None:
        given["shapes"] = tuple(parse_shape(shape) for shape in shapes)
    return _measure(app_of(ctx), rig, SweepWork.model_validate(given), seed)


@tool("Score answers", open_world=True)
def run_eval(
    ctx: Context[App],
    rig: RigName,
    dataset: Annotated[Dataset, Field(description="gsm8k: word problems. bfcl_simple: one tool call each.")],
    source: Annotated[
        str,
        Field(
            description="'sample' (six questions of our own), 'hub' (gsm8k, pinned), an absolute path on this machine, "
            "or an http(s) address."
        ),
    ] = "sample",
    sha256: Annotated[str | None, Field(description="Of the source; an address needs it.")] = None,
    answers: Annotated[str | None, Field(description="bfcl_simple: path or address of its answers.")] = None,
    answers_sha256: str | None = None,
    limit: Annotated[int | None, Field(ge=1, description="Ask the first so many; null: all.")] = None,
    concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] = 1,
    max_tokens: Annotated[int, Field(ge=1, le=65_536, description="Longest reply.")] = 1024,
) -> JobView:
    """Ask questions of what the rig serves, greedy, and score the replies; gives the share right and its range.

    GSM8K is scored by number, and by lm-eval's strict and flexible rules; BFCL by the leaderboard's checker.
    """
    questions = QuestionSource(
        dataset=dataset, source=source, sha256=sha256, answers=answers, answers_sha256=answers_sha256
    )
    check_source(questions)
    app = app_of(ctx)
    _require_served(app, rig)
    args = {
        "work": {"limit": limit, "concurrency": concurrency, "max_tokens": max_tokens},
        "questions": questions.model_dump(mode="json"),
        "seed": 0,  # no prompt is made up
    }
    return job_view(app.submit("eval", rig, args))


def parse_shape(text: str) -> Shape:
    """Read `512/128`.

    Raises:
        UsageError: it is not of that form.
    """
    try:
        input_len, output_len = (int(part) for part in text.split("/"))
    except ValueError as error:
        raise UsageError(f"The shape {text!r} is not of the form INPUT/OUTPUT, e.g. 512/128.") from error
    return Shape(input_len=input_len, output_len=output_len)


def _measure(app: App, rig: str, work: SpeedWork | SweepWork, seed: int | None) -> JobView:
    _require_served(app, rig)
    total = len(plan_cells(work))
    if not total:
        raise UsageError("That makes no cell to measure: give at least one prompt, or one concurrency and one shape.")
    args = {
        "work": work.model_dump(mode="json"),
        "seed": secrets.randbits(32) if seed is None else seed,
    }
    return job_view(app.submit(work.kind, rig, args)).model_copy(update={"total": total})


def _require_served(app: App, rig: str) -> None:
    served = app.state.rig(rig).served
    coming = any(job.kind == "serve" for job in app.state.jobs(rig=rig, unfinished=True))
    if served is None and not coming:
        raise UsageError(
            f"Nothing is served on {rig!r}. Call serve_engine(rig={rig!r}, checkpoint=...) first; "
            "list_checkpoints names the weights."
        )
