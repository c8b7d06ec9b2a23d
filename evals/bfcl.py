"""BFCL simple: one function, one request, one right call. How it is asked, and the leaderboard's checker rule by rule.

The rules are those of the leaderboard's checker for Python functions, quirks included, since a score by other rules is
another score. Where a quirk would surprise, the comment says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from evals.errors import WorkloadError
from evals.questions import CallAnswer, Message, Parameter, Question, Verdict, damaged_line

SCORER_VERSION = "bfcl_simple-1"

_SENT_TYPES = {
    "integer": "integer",
    "number": "number",
    "float": "number",
    "string": "string",
    "boolean": "boolean",
    "array": "array",
    "tuple": "array",
    "dict": "object",
    "object": "object",
    "any": "string",
}
_TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}


class _QuestionRow(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    question: tuple[tuple[Message, ...], ...] = Field(min_length=1, max_length=1)
    function: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=1)


class _AnswerRow(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    ground_truth: tuple[dict[str, dict[str, tuple[JsonValue, ...]]], ...] = Field(min_length=1, max_length=1)


class _Schema(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    type: str = "any"
    items: _Schema | None = None
    properties: dict[str, _Schema] = Field(default_factory=dict)
    required: tuple[str, ...] = ()


class _Function(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    parameters: _Schema


def answers_by_id(rows: Sequence[tuple[int, dict[str, Any]]], name: str) -> dict[str, dict[str, dict[str, Any]]]:
    """`{question id: {function: {parameter: values that are right}}}` of the file of answers.

    Raises:
        WorkloadError: a line is no answer.
    """
    answers: dict[str, dict[str, dict[str, Any]]] = {}
    for number, row in rows:
        try:
            read = _AnswerRow.model_validate(row)
        except ValidationError as error:
            raise damaged_line(name, number, error) from error
        answers[read.id] = dict(read.ground_truth[0])
    return answers


def question_of(row: dict[str, Any], number: int, name: str, answers: Mapping[str, dict[str, Any]]) -> Question:
    """A row of the file of questions and its answer, as we ask it.

    Raises:
        WorkloadError: it is no such row, or has no answer; `number` and `name` say which.
    """
    try:
        read = _QuestionRow.model_validate(row)
        function = _Function.model_validate(read.function[0])
    except ValidationError as error:
        raise damaged_line(name, number, error) from error
    accepted = answers.get(read.id, {}).get(function.name)
    if accepted is None:
        raise WorkloadError(f"Line {number} of {name}: the answers have none for {read.id!r} and {function.name!r}.")
    parameters = {
        key: Parameter(type=value.type, item_type=value.items.type if value.items else None)
        for key, value in function.parameters.properties.items()
    }
    unknown = sorted({parameter.type for parameter in parameters.values()} - set(_TYPES))
    if unknown:
        raise WorkloadError(f"Line {number} of {name}: unknown parameter type {unknown[0]!r}.")
    return Question(
        id=read.id,
        messages=read.question[0],
        tools=(tool_of(read.function[0]),),
        answer=CallAnswer(
            function=function.name,
            parameters=parameters,
            required=function.parameters.required,
            accepted=accepted,
        ),
    )


def tool_of(function: Mapping[str, Any]) -> dict[str, JsonValue]:
    """A function of the data set as an OpenAI tool: names without dots, types of JSON Schema."""
    return {
        "type": "function",
        "function": {
            **function,
            "name": sent_name(str(function["name"])),
            "parameters": _sent_schema(function["parameters"]),
        },
    }


def sent_name(name: str) -> str:
    return name.replace(".", "_")


def _sent_schema(schema: Mapping[str, Any]) -> dict[str, JsonValue]:
    sent: dict[str, Any] = {**schema, "type": _SENT_TYPES.get(str(schema.get("type")), "string")}
    if "properties" in schema:
        sent["properties"] = {name: _sent_property(value) for name, value in schema["properties"].items()}
    if "items" in schema:
        sent["items"] = _sent_schema(schema["items"])
    return sent


def _sent_property(schema: Mapping[str, Any]) -> dict[str, JsonValue]:
    sent = _sent_schema(schema)
    if schema.get("type") == "float":
        # The leaderboard tells models so, since JSON Schema has no float.
        sent |= {"format": "float", "description": f"{schema.get('description', '')} This is a float type value."}
    return sent


def score(answer: CallAnswer, tool_calls: Sequence[Mapping[str, Any]]) -> Verdict:
    """Judge a reply's tool calls, as the OpenAI chat format has them."""
    calls = [f"{_function_of(call).get('name')}({_function_of(call).get('arguments')})" for call in tool_calls]
    read = "; ".join(calls)[:1000] or None
    try:
        why_wrong = _why_wrong(answer, [_decoded(call) for call in tool_calls])
    except (_WrongError, OverflowError, RecursionError) as error:
        # An integer beyond every float ends the original's whole run; here it is wrong.
        why_wrong = str(error)
    return Verdict(correct=why_wrong is None, read=read, why_wrong=why_wrong)


class _WrongError(Exception):
    """Says why a call is wrong."""


def _function_of(call: Mapping[str, Any]) -> dict[str, Any]:
    return call.get("function") or {}


def _decoded(call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    function = _function_of(call)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise _WrongError("the arguments are no string of JSON")
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise _WrongError(f"the arguments are no JSON: {str(error)[:100]}") from error
    if not isinstance(values, dict):
        raise _WrongError("the arguments are no JSON object")
    return str(function.get("name")), cast("dict[str, Any]", values)


def _why_wrong(answer: CallAnswer, calls: Sequence[tuple[str, dict[str, Any]]]) -> str | None:
    if len(calls) != 1:
        return f"{len(calls)} calls instead of one"
    name, given = calls[0]
    # Only the expected name loses its dots: an answer with a dotted name is wrong.
    if name != sent_name(answer.function):
        return f"a call of {name!r} instead of {sent_name(answer.function)!r}"
    for parameter in answer.required:
        if parameter not in given:
            return f"the required parameter {parameter!r} is missing"
    for parameter, value in given.items():
        if parameter not in answer.parameters or parameter not in answer.accepted:
            return f"a parameter {parameter!r} that is not asked for"
        if not _is_right(answer.parameters[parameter], value, answer.accepted[parameter]):
            return f"{parameter!r} is {json.dumps(value)[:100]}"
    for parameter, accepted in answer.accepted.items():
        if parameter not in given and "" not in accepted:
            return f"the parameter {parameter!r} is missing"
    return None


def _is_right(parameter: Parameter, value: Any, accepted: Sequence[Any]) -> bool:
    wanted = _TYPES[parameter.type]
    item_type = _TYPES.get(parameter.item_type or "") if wanted is list else None
    if parameter.type == "float" and type(value) is int:  # at the top only: not inside arrays
        value = float(value)
    kind = _kind(value, wanted, item_type, accepted)
    if kind is None:
        return False
    if kind == "as declared":
        if wanted is dict:
            return _dict_is_right(value, accepted)
        if wanted is list and item_type is dict:
            return _dicts_are_right(value, accepted)
        if wanted is str:
            return _standard(value) in [_standard(one) for one in accepted if isinstance(one, str)]
        if wanted is list:
            # An empty string among the answers counts as the empty list.
            return [_standard(one) for one in value] in [list(map(_standard, one)) for one in _sequences(accepted)]
    return value in accepted


def _kind(value: Any, wanted: type, item_type: type | None, accepted: Sequence[Any]) -> str | None:
    """`as declared`, or `variable`: of the type of the accepted values instead, which is compared as it is; else None.

    `type() is` and not isinstance: true is no integer here.
    """
    answers_type = next((type(one) for one in accepted if one != ""), None)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # any JSON
    is_variable = answers_type is not None and answers_type is not wanted
    if type(value) is wanted:
        if item_type is not None and not any(
            # An answer that is no list ("" for: may be left out) holds for any items.
            not isinstance(answer, list) or all(_kind(one, item_type, None, answer) for one in value)  # pyright: ignore[reportUnknownArgumentType]  # any JSON
            for answer in accepted
        ):
            return None
        return "variable" if is_variable else "as declared"
    return "variable" if answers_type is not None and type(value) is answers_type else None


def _dict_is_right(value: Mapping[str, Any], accepted: Sequence[Any]) -> bool:
    """Key by key, and without a look at types: 20.0 passes for 20. Lists inside are compared as they are."""

    def fits(answer: Mapping[str, Any]) -> bool:
        values = {key: cast("list[Any]", one) for key, one in answer.items() if isinstance(one, list)}
        return all(
            key in values and _standard(given) in [_standard(one) for one in values[key]]
            for key, given in value.items()
        ) and all(key in value or "" in one for key, one in values.items())

    return any(fits(answer) for answer in accepted if isinstance(answer, dict))  # pyright: ignore[reportUnknownArgumentType]  # any JSON


def _dicts_are_right(value: Sequence[Any], accepted: Sequence[Any]) -> bool:
    def fits(answer: Sequence[Any]) -> bool:
        pairs = zip(value, answer, strict=False)
        return len(value) == len(answer) and all(
            type(one) is dict and _dict_is_right(one, [want]) for one, want in pairs
        )

    return any(fits(answer) for answer in _sequences(accepted))


def _sequences(accepted: Sequence[Any]) -> list[Sequence[Any]]:
    return [answer for answer in accepted if isinstance(answer, (list, str))]


def _standard(value: Any) -> Any:
    """A string without spaces, some signs and case; anything else as it is."""
    if not isinstance(value, str):
        return value
    return re.sub(r"[ ,./\-_*^]", "", value).lower().replace("'", '"')
