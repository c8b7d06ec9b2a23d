"""Questions in our own form, as they travel to the rig in `items.jsonl`, and what came of each.

Where questions come from (a sample, a file, a hub) is the business of whoever plans the unit; here they are one file
whose hash the unit names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError

from evals.errors import WorkloadError
from evals.spec import EvalWork
from rigs.facts import Border

ITEMS = "items.jsonl"


class Message(Border):
    role: Literal["system", "user", "assistant"]
    content: str


class NumberAnswer(Border):
    """A word problem's answer."""

    kind: Literal["number"] = "number"
    value: str
    """As the data set writes it, e.g. `1,800`."""
    solution: str
    """The data set's whole answer, which lm-eval compares with."""


class Parameter(Border):
    """A parameter of a function, in the data set's own words for types."""

    type: str
    item_type: str | None = None
    """Of an array or tuple."""


class CallAnswer(Border):
    """One function call, with every value that counts as right."""

    kind: Literal["call"] = "call"
    function: str
    """As the data set writes it; sent with `_` for each dot."""
    parameters: dict[str, Parameter]
    required: tuple[str, ...]
    accepted: dict[str, tuple[JsonValue, ...]]
    """An empty string among them means that the parameter may be left out."""


class Question(Border):
    id: str
    messages: tuple[Message, ...] = Field(min_length=1)
    tools: tuple[dict[str, JsonValue], ...] | None = None
    answer: Annotated[NumberAnswer | CallAnswer, Field(discriminator="kind")]


class Verdict(Border):
    """What a scorer says of one reply."""

    correct: bool
    read: str | None = None
    """What the scorer took for the answer; None where it found none."""
    why_wrong: str | None = None
    lm_eval_strict: bool | None = None
    """Right by lm-eval's rules of this name; None where the data set has none."""
    lm_eval_flexible: bool | None = None


class ItemResult(Border):
    """A line of `items_results.jsonl`: a question's raw reply and its verdict, so that rescoring needs no rerun."""

    cell: int
    """Number of the cell that it belongs to, from 1."""
    id: str
    answered: bool
    """False where the request failed; then it counts as wrong."""
    reason: str | None
    """Why the request failed."""
    verdict: Verdict
    scorer_version: str
    finish_reason: str | None
    text: str
    reasoning: str
    tool_calls: list[dict[str, JsonValue]]


def encode_questions(questions: Iterable[Question]) -> bytes:
    """The bytes of `items.jsonl`: equal questions give equal bytes."""
    return b"".join(question.model_dump_json().encode() + b"\n" for question in questions)


def decode_questions(content: bytes, name: str) -> list[Question]:
    """Raises: WorkloadError: a line is damaged, or an id comes twice; the message names file and line."""
    questions: dict[str, Question] = {}
    for number, line in enumerate(content.splitlines(), 1):
        try:
            question = Question.model_validate_json(line)
        except ValidationError as error:
            raise damaged_line(name, number, error) from error
        if question.id in questions:
            raise WorkloadError(f"Line {number} of {name} is a second question {question.id!r}.")
        questions[question.id] = question
    return list(questions.values())


def read_questions(run_dir: Path, work: EvalWork) -> list[Question]:
    """The questions that the unit asks.

    Raises:
        WorkloadError: the file is missing or damaged, or holds other questions than the unit names.
    """
    path = run_dir / ITEMS
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WorkloadError(f"Cannot read the questions {path}: {error.strerror}.") from error
    found = hashlib.sha256(content).hexdigest()
    if found != work.items_sha256:
        decode_questions(content, str(path))  # a damaged line says more than a hash
        raise WorkloadError(
            f"The questions {path} are not those of this unit: their sha256 is {found}, the unit says "
            f"{work.items_sha256}. Plan the unit again."
        )
    questions = decode_questions(content, str(path))
    if len(questions) != work.items:
        raise WorkloadError(f"{path} holds {len(questions)} questions, the unit says {work.items}.")
    return questions[: work.asked]


def read_rows(content: bytes, name: str) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSON Lines file with their line numbers; empty lines are passed over.

    Raises:
        WorkloadError: a line is no JSON object, or there is none.
    """
    rows: list[tuple[int, dict[str, Any]]] = []
    # Not splitlines() of text: that cuts at U+2028, which JSON may hold.
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise WorkloadError(f"Line {number} of {name} is no JSON: {error}.") from error
        if not isinstance(row, dict):
            raise WorkloadError(f"Line {number} of {name} is no JSON object.")
        rows.append((number, row))  # pyright: ignore[reportUnknownArgumentType]  # JSON of a peer
    if not rows:
        raise WorkloadError(f"{name} holds no question.")
    return rows


def damaged_line(name: str, number: int, error: ValidationError) -> WorkloadError:
    """Say in words what is wrong with a line of a file of questions."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return WorkloadError(f"Line {number} of {name} is no question: {where + ': ' if where else ''}{first['msg']}.")


def needs_tools(questions: Sequence[Question]) -> bool:
    return any(question.tools for question in questions)
