"""What a unit of work is: one measuring job on one arm, as it travels to the rig in `spec.json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from rigs.facts import Border
from rigs.serving import Arm, Endpoint

MAX_CONCURRENCY = 1024


class Shape(Border):
    """Lengths of one request of a sweep, in tokens; the prompt's include the chat template."""

    input_len: int = Field(ge=1, le=1_048_576)
    output_len: int = Field(ge=1, le=65_536)


class SpeedWork(Border):
    """One request at a time: chat prompts x repeats, greedy."""

    kind: Literal["speed"] = "speed"
    prompts: tuple[str, ...] = ("code", "advice", "story", "explanation", "facts", "summary")
    """Names of prompts in `evals.prompts.chat`."""
    max_tokens: int = Field(default=256, ge=1, le=65_536)
    repeats: int = Field(default=3, ge=1, le=100)


class SweepWork(Border):
    """Bursts of c requests at once over shapes and repeats; one cell is one burst."""

    kind: Literal["sweep"] = "sweep"
    concurrency: tuple[Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)], ...] = (1, 2, 4, 8, 16, 32, 64)
    shapes: tuple[Shape, ...] = (Shape(input_len=512, output_len=128), Shape(input_len=128, output_len=512))
    repeats: int = Field(default=5, ge=1, le=100)


Dataset = Literal["gsm8k", "bfcl_simple"]


class EvalWork(Border):
    """Questions asked once each, greedy, and scored. They lie in `items.jsonl` beside the unit."""

    kind: Literal["eval"] = "eval"
    dataset: Dataset
    items_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of `items.jsonl`, whatever the limit."""
    items: int = Field(ge=1)
    """Questions in that file."""
    limit: int | None = Field(default=None, ge=1)
    """Ask the first so many; null: all."""
    concurrency: int = Field(default=1, ge=1, le=MAX_CONCURRENCY)
    max_tokens: int = Field(default=1024, ge=1, le=65_536)

    @property
    def asked(self) -> int:
        return self.items if self.limit is None else min(self.items, self.limit)


Work = Annotated[SpeedWork | SweepWork | EvalWork, Field(discriminator="kind")]


class UnitSpec(Border):
    report_id: str
    seed: int
    """Makes the prompts; a new one for every run, so that no cache of an earlier run can hit."""
    arm: Arm
    endpoint: Endpoint
    work: Work
    request_timeout_s: float = Field(default=600.0, gt=0)
    idle_timeout_s: float = Field(default=120.0, gt=0)
    provenance: dict[str, JsonValue] = Field(default_factory=dict)
    """Read from the live system by whoever made the unit; copied into the report."""
