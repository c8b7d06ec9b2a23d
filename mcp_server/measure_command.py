"""`rigbench measure`: the jobs of `evals` against any endpoint, in this process, with progress on stderr."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from pathlib import Path

from pydantic import JsonValue, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evals.__main__ import describe
from evals.cells import key_of
from evals.eval_run import describe_score
from evals.journal import SPEC, read_spec
from evals.load import loop_factory
from evals.questions import ITEMS
from evals.report import Cell, Report
from evals.runner import run_unit
from evals.spec import Shape, SpeedWork, SweepWork, UnitSpec, Work
from evals.workload import plan_cells
from mcp_server.edge import in_words
from mcp_server.question_source import HUB, SAMPLE, QuestionSource
from mcp_server.questions import load_questions
from rigs.errors import UsageError
from rigs.plugins import load_engine
from rigs.serving import Arm, Endpoint, RequestFields


def run(options: argparse.Namespace) -> int:
    """Measure, and say where the report lies. Exit code 1 where the unit failed; its report is written all the same.

    Raises:
        RigsError: it cannot be measured as asked.
    """
    out = Path(options.out).expanduser().absolute()
    spec = plan(options, out)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(f"{spec.work.kind} of {spec.endpoint.model}", total=len(plan_cells(spec.work)))

        def tell(cell: Cell, number: int, _: int) -> None:
            progress.console.print(f"{key_of(cell)}: {describe(cell)}", highlight=False, markup=False)
            progress.update(bar, completed=number)

        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                report = runner.run(run_unit(spec, out, tell))
        except asyncio.CancelledError as error:
            raise KeyboardInterrupt from error
    _say(console, report, out)
    return 0 if report.status == "ok" else 1


def plan(options: argparse.Namespace, out: Path) -> UnitSpec:
    """Make the unit; where `out` holds the same one already, that one, so that it goes on.

    Raises:
        UsageError: an argument is off, in words.
    """
    try:
        work, told = _eval_work(options, out) if options.kind == "eval" else (_work(options), {})
        fields = load_engine(options.engine).request_fields() if options.engine else RequestFields()
        spec = UnitSpec(
            report_id=out.name,
            seed=secrets.randbits(32) if options.seed is None else options.seed,
            arm=Arm(engine=options.engine),
            endpoint=Endpoint(
                base_url=options.base_url,
                model=options.model,
                request=fields.model_copy(update={"body": {**fields.body, **options.body}}),
                context_tokens=options.context_tokens,
                parallel=options.parallel,
                api_key_env=options.api_key_env,
            ),
            work=work,
            provenance=told,
        )
    except ValidationError as error:
        raise UsageError(in_words(error)) from error
    if options.seed is None and (out / SPEC).exists():
        return spec.model_copy(update={"seed": read_spec(out / SPEC).seed})
    return spec


def _work(options: argparse.Namespace) -> SpeedWork | SweepWork:
    if options.kind == "speed":
        work = SpeedWork(max_tokens=options.max_tokens, repeats=options.repeats)
        if options.prompts is None:
            return work
        return SpeedWork.model_validate({**work.model_dump(), "prompts": tuple(options.prompts.split(","))})
    try:
        concurrency = tuple(int(number) for number in options.concurrency.split(","))
        pairs = [shape.split("/") for shape in options.shapes.split(",")]
        shapes = tuple(Shape(input_len=int(input_len), output_len=int(output_len)) for input_len, output_len in pairs)
    except ValueError as error:
        if isinstance(error, ValidationError):
            raise
        raise UsageError("Give --concurrency as 1,2,4 and --shapes as 512/128,128/512.") from error
    return SweepWork(concurrency=concurrency, shapes=shapes, repeats=options.repeats)


def _eval_work(options: argparse.Namespace, out: Path) -> tuple[Work, dict[str, JsonValue]]:
    """Load the questions and lay them into `out`, unless an earlier start did."""
    loaded = load_questions(
        QuestionSource(
            dataset=options.dataset,
            source=_absolute(options.source),
            sha256=options.sha256,
            answers=_absolute(options.answers) if options.answers else None,
            answers_sha256=options.answers_sha256,
        )
    )
    work = loaded.work(limit=options.limit, concurrency=options.concurrency, max_tokens=options.max_tokens)
    if not (out / SPEC).exists():
        out.mkdir(parents=True, exist_ok=True)
        (out / ITEMS).write_bytes(loaded.content)
    return work, loaded.provenance


def _absolute(place: str) -> str:
    """Give a path from the current folder its full form; leave other sources as they are."""
    return place if place in (SAMPLE, HUB) or "://" in place else str(Path(place).expanduser().absolute())


def _say(console: Console, report: Report, out: Path) -> None:
    if report.speed and report.speed.geomean_decode_tok_s:
        console.print(f"geometric mean: {report.speed.geomean_decode_tok_s:.1f} tok/s decode")
    if report.eval:
        console.print(describe_score(report.eval), highlight=False, markup=False)
    for warning in report.warnings:
        console.print(f"warning: {warning}", highlight=False, markup=False)
    verdict = report.status if report.reason is None else f"{report.status}: {report.reason}"
    console.print(f"{verdict}\nreport: {out / 'report.json'}", highlight=False, markup=False, soft_wrap=True)
