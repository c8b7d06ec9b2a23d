"""What charts and tables show of a report: cells grouped by shape and concurrency or by prompt, medians over repeats.

Pure. Values that are not there, or are no finite numbers, are left out here, so that no drawing has to care.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from evals.report import Cell, Report
from evals.statistics import mean, median

TOO_LARGE = 1e15
"""No speed and no time: such a number is damage, and would stretch an axis until nothing else is seen."""


def total_output_tok_s(cell: Cell) -> float | None:
    return cell.total_output_tok_s


def decode_tok_s(cell: Cell) -> float | None:
    return cell.decode_tok_s


def ttft_ms_p50(cell: Cell) -> float | None:
    return cell.ttft_ms.p50 if cell.ttft_ms else None


def ttft_ms_p99(cell: Cell) -> float | None:
    return cell.ttft_ms.p99 if cell.ttft_ms else None


def tpot_ms_p50(cell: Cell) -> float | None:
    return cell.tpot_ms.p50 if cell.tpot_ms else None


def e2e_ms_p50(cell: Cell) -> float | None:
    return cell.e2e_ms.p50 if cell.e2e_ms else None


def acceptance_percent(cell: Cell) -> float | None:
    return None if cell.accepted is None or not cell.drafted else 100 * cell.accepted / cell.drafted


Figure = Callable[[Cell], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The repeats of one shape at one concurrency."""

    concurrency: int
    cells: tuple[Cell, ...]

    def values(self, figure: Figure) -> list[float]:
        """One value a repeat, of those that have it."""
        return finite(figure(cell) for cell in self.cells)

    def median(self, figure: Figure) -> float | None:
        return median(self.values(figure))

    @property
    def ok_cells(self) -> int:
        return sum(cell.status == "ok" for cell in self.cells)

    @property
    def remarks(self) -> list[str]:
        """Why cells are not ok, each reason once."""
        found = (f"{cell.status}: {cell.reason}" if cell.reason else cell.status for cell in self.cells)
        return [words for words in dict.fromkeys(found) if words != "ok"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One shape, by concurrency."""

    input_len: int | None
    output_len: int
    points: tuple[Point, ...]

    @property
    def label(self) -> str:
        return f"{self.input_len if self.input_len is not None else '?'} in, {self.output_len} out"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSpeed:
    """The repeats of one prompt of a speed unit."""

    prompt: str
    cells: tuple[Cell, ...]
    decode_tok_s: float | None
    """As the report has it, else the mean over the cells."""

    @property
    def repeats(self) -> list[float]:
        return finite(cell.decode_tok_s for cell in self.cells)

    @property
    def acceptance_percent(self) -> float | None:
        """Over all repeats, so that a long reply weighs more; None where nothing was drafted or told."""
        drafted = sum(cell.drafted or 0 for cell in self.cells)
        return 100 * sum(cell.accepted or 0 for cell in self.cells) / drafted if drafted else None


def curves(report: Report) -> list[Curve]:
    """Shapes in the order in which they were run."""
    shapes: dict[tuple[int | None, int], dict[int, list[Cell]]] = {}
    for cell in report.cells:
        if cell.prompt is None:
            shape = shapes.setdefault((cell.input_len, cell.output_len), {})
            shape.setdefault(cell.concurrency, []).append(cell)
    return [
        Curve(
            input_len=input_len,
            output_len=output_len,
            points=tuple(Point(concurrency=c, cells=tuple(cells)) for c, cells in sorted(points.items())),
        )
        for (input_len, output_len), points in shapes.items()
    ]


def prompt_speeds(report: Report) -> list[PromptSpeed]:
    """Prompts in the order in which they were run."""
    prompts: dict[str, list[Cell]] = {}
    for cell in report.cells:
        if cell.prompt is not None:
            prompts.setdefault(cell.prompt, []).append(cell)
    told = {line.prompt: line.decode_tok_s for line in report.speed.prompts} if report.speed else {}
    found: list[PromptSpeed] = []
    for prompt in dict.fromkeys([*prompts, *told]):
        cells = tuple(prompts.get(prompt, ()))
        speeds = finite([told.get(prompt)]) or finite(cell.decode_tok_s for cell in cells)
        found.append(PromptSpeed(prompt=prompt, cells=cells, decode_tok_s=mean(speeds)))
    return found


def finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value) and abs(value) < TOO_LARGE]


def tell_apart(reports: Sequence[Report]) -> list[str]:
    """A short name for each of these reports: what its arm has and the others' have not."""
    words = [_words(report) for report in reports]
    names = [
        ", ".join(own for column, own in enumerate(row) if len({other[column] for other in words}) > 1) for row in words
    ]
    return names if len(set(names)) == len(names) else [report.report_id for report in reports]


def _words(report: Report) -> tuple[str, ...]:
    arm = report.arm
    drafter = "no drafter"
    if arm.drafter is not None:
        drafter = f"{arm.drafter.method} drafter, {arm.draft_tokens or arm.drafter.draft_tokens} tokens"
    engine = " ".join(word for word in (arm.engine, arm.engine_version) if word) or "engine unknown"
    checkpoint = arm.checkpoint.name if arm.checkpoint else "model unknown"
    return (arm.accelerator or arm.rig or "rig unknown", engine, checkpoint, drafter)
