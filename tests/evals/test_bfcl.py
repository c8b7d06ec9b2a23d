import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals import bfcl
from evals.errors import WorkloadError
from evals.questions import CallAnswer, Parameter
from tests.evals.records import known

PARAMETERS = {
    "text": Parameter(type="string"),
    "count": Parameter(type="integer"),
    "rate": Parameter(type="float"),
    "flag": Parameter(type="boolean"),
    "words": Parameter(type="array", item_type="string"),
    "rates": Parameter(type="array", item_type="float"),
    "pair": Parameter(type="tuple", item_type="integer"),
    "place": Parameter(type="dict"),
    "places": Parameter(type="array", item_type="dict"),
    "thing": Parameter(type="any"),
    "odd": Parameter(type="string"),
}
NAME = "maps.find_place"


def is_right(parameter, value, *accepted, required=False, **given):
    answer = CallAnswer(
        function=NAME,
        parameters=PARAMETERS,
        required=(parameter,) if required else (),
        accepted={parameter: accepted},
    )
    return bfcl.score(answer, call({parameter: value, **given})).correct


def call(arguments, name="maps_find_place"):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return [{"id": "1", "type": "function", "function": {"name": name, "arguments": text}}]


@pytest.mark.parametrize(
    ("parameter", "value", "accepted", "right"),
    [
        # strings: case, spaces and some signs do not count; others do
        ("text", "new york-NY", ["New York, NY"], True),
        ("text", "it's", ['it"s'], True),
        ("text", "a\tb", ["ab"], False),
        ("text", "a!", ["a"], False),
        ("text", "a\N{EN DASH}b", ["a-b"], False),
        ("text", 5, ["5"], False),
        ("thing", "X", ["x"], True),
        # numbers: only an int for a float parameter is converted, and only at the top
        ("count", 10, [10], True),
        ("count", 10.0, [10], False),
        ("count", True, [1], False),
        ("rate", 10, [10.0], True),
        ("rate", 10.5, [10.0, 10.5], True),
        ("rate", math.nan, [10.0], False),
        ("rate", 10**400, [1.0], False),
        ("rates", [1, 2], [[1.0, 2.0]], False),
        ("rates", [1.0, 2.0], [[1.0, 2.0]], True),
        ("rates", [1, 2], [[1, 2]], True),
        ("flag", False, [False], True),
        ("flag", 0, [False], False),
        # lists: order counts, strings in them are standardised
        ("words", ["New York", "b"], [["newyork", "B"]], True),
        ("words", ["b", "a"], [["a", "b"]], False),
        ("words", [], [["a"], ""], True),
        ("words", [], [["a"]], False),
        ("pair", [1, 2], [[1, 2]], True),
        # dicts: key by key, without a look at types
        ("place", {"x": 20.0}, [{"x": [20]}], True),
        ("place", {"x": "A b"}, [{"x": ["ab"]}], True),
        ("place", {"x": ["A b"]}, [{"x": [["ab"]]}], False),
        ("place", {"x": 1, "y": 2}, [{"x": [1]}], False),
        ("place", {}, [{"x": [1]}], False),
        ("place", {}, [{"x": [1, ""]}], True),
        ("places", [{"x": 1}, {"x": 2}], [[{"x": [1]}, {"x": [2]}]], True),
        ("places", [{"x": 2}, {"x": 1}], [[{"x": [1]}, {"x": [2]}]], False),
        ("places", ["x"], [[{"x": [1]}], ""], False),
        # a value of the answers' own type is taken as it is, whatever the schema says
        ("odd", True, [True], True),
        ("odd", "true", [True], False),
        ("count", "n", ["n"], True),
        ("count", "N", ["n"], False),
        # the empty string is a value too, and null never is
        ("text", "", ["a", ""], True),
        ("text", " - ", ["a", ""], True),
        ("text", None, ["a", ""], False),
    ],
)
def test_a_value_is_judged_by_the_leaderboards_rules(parameter, value, accepted, right):
    assert is_right(parameter, value, *accepted) is right


def test_a_parameter_may_be_left_out_only_where_the_answers_say_so_and_it_is_not_required():
    def left_out(*, required, accepted):
        answer = CallAnswer(
            function=NAME, parameters=PARAMETERS, required=("text",) if required else (), accepted={"text": accepted}
        )
        return bfcl.score(answer, call({})).correct

    assert left_out(required=False, accepted=("a", ""))
    assert not left_out(required=False, accepted=("a",))
    assert not left_out(required=True, accepted=("a", ""))


def test_a_parameter_outside_the_schema_or_the_answers_is_wrong():
    assert not is_right("text", "a", "a", extra=1)
    assert not is_right("text", "a", "a", count=1)  # in the schema, and not in the answers


ANSWER = CallAnswer(function=NAME, parameters=PARAMETERS, required=("text",), accepted={"text": ("a",)})


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([], "0 calls instead of one"),
        (call({"text": "a"}) * 2, "2 calls instead of one"),
        (call({"text": "a"}, "maps.find_place"), "a call of 'maps.find_place' instead of 'maps_find_place'"),
        (call({}), "the required parameter 'text' is missing"),
        (call(""), "the arguments are no JSON"),
        (call('```json\n{"text": "a"}\n```'), "the arguments are no JSON"),
        (call('\N{ZERO WIDTH NO-BREAK SPACE}{"text": "a"}'), "the arguments are no JSON"),
        (call("[1]"), "the arguments are no JSON object"),
        (call("null"), "the arguments are no JSON object"),
        (call("[" * 100_000), "the arguments are no JSON"),
        ([{"function": {"name": "maps_find_place", "arguments": {"text": "a"}}}], "the arguments are no string"),
        ([{"function": {"name": "maps_find_place", "arguments": None}}], "the arguments are no string"),
        ([{}], "the arguments are no string"),
        (call({"text": "b"}), "'text' is \"b\""),
    ],
)
def test_what_is_wrong_with_a_call_is_said(calls, why):
    verdict = bfcl.score(ANSWER, calls)
    assert not verdict.correct
    assert why in (verdict.why_wrong or "")


def test_the_last_of_two_equal_keys_counts():
    assert bfcl.score(ANSWER, call('{"text": "b", "text": "a"}')).correct


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(parameter=st.sampled_from(sorted(PARAMETERS)), value=VALUES, accepted=st.lists(VALUES, min_size=1, max_size=3))
def test_any_call_has_a_verdict(parameter, value, accepted):
    assert is_right(parameter, value, *accepted) in (True, False)


@given(
    text=st.text(max_size=20),
    count=st.integers(),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    words=st.lists(st.text(max_size=5), max_size=3),
    flag=st.booleans(),
)
def test_a_right_answer_always_scores(text, count, rate, words, flag):
    right = {"text": text, "count": count, "rate": rate, "words": words, "flag": flag}
    answer = CallAnswer(
        function=NAME,
        parameters=PARAMETERS,
        required=tuple(right),
        accepted={name: (value,) for name, value in right.items()},
    )
    assert bfcl.score(answer, call(right)).correct


FUNCTION = {
    "name": NAME,
    "description": "Find it.",
    "parameters": {
        "type": "dict",
        "required": ["text"],
        "properties": {
            "text": {"type": "string", "description": "What."},
            "rate": {"type": "float", "description": "How much."},
            "pair": {"type": "tuple", "items": {"type": "float"}},
            "thing": {"type": "any"},
            "place": {"type": "dict", "properties": {"x": {"type": "float", "description": "X."}}},
        },
    },
}
ROW = {"id": "q1", "question": [[{"role": "user", "content": "Find it"}]], "function": [FUNCTION]}


def test_a_function_is_sent_as_json_schema_has_it():
    tools = bfcl.question_of(ROW, 1, "q", {"q1": {NAME: {"text": ["a"]}}}).tools
    assert known(tools)[0] == {
        "type": "function",
        "function": {
            "name": "maps_find_place",
            "description": "Find it.",
            "parameters": {
                "type": "object",
                "required": ["text"],
                "properties": {
                    "text": {"type": "string", "description": "What."},
                    "rate": {
                        "type": "number",
                        "format": "float",
                        "description": "How much. This is a float type value.",
                    },
                    "pair": {"type": "array", "items": {"type": "number"}},
                    "thing": {"type": "string"},
                    "place": {
                        "type": "object",
                        "properties": {
                            "x": {
                                "type": "number",
                                "format": "float",
                                "description": "X. This is a float type value.",
                            }
                        },
                    },
                },
            },
        },
    }


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**ROW, "question": []}, "Line 4 of q is no question: question"),
        ({**ROW, "function": [FUNCTION, FUNCTION]}, "Line 4 of q is no question: function"),
        ({**ROW, "id": "q2"}, "the answers have none for 'q2'"),
        (
            {**ROW, "function": [{"name": NAME, "parameters": {"properties": {"x": {"type": "blob"}}}}]},
            "unknown parameter type 'blob'",
        ),
    ],
)
def test_a_row_that_cannot_be_asked_is_refused_by_its_line(row, words):
    with pytest.raises(WorkloadError, match=words):
        bfcl.question_of(row, 4, "q", {"q1": {NAME: {"text": ["a"]}}})


def test_a_damaged_answer_is_refused_by_its_line():
    with pytest.raises(WorkloadError, match="Line 2 of answers is no question: ground_truth"):
        bfcl.answers_by_id([(2, {"id": "q1", "ground_truth": {}})], "answers")
