import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals import gsm8k
from evals.errors import WorkloadError
from evals.questions import NumberAnswer

EIGHTEEN = NumberAnswer(value="18", solution="She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\n9 * 2 = 18.\n#### 18")


def gold(value: str) -> NumberAnswer:
    return NumberAnswer(value=value, solution=f"So it is.\n#### {value}")


@pytest.mark.parametrize(
    ("text", "correct", "strict", "flexible"),
    [
        # reply, ours, lm-eval's strict, its flexible
        ("9 eggs at $2.\n#### 18", True, True, True),
        ("#### 18.", True, True, True),
        ("#### $18", True, False, True),
        ("#### **18**", True, False, True),
        ("####18", True, False, True),
        ("#### 18.00", True, False, False),
        ("#### 18 dollars in 2 days", True, True, False),
        ("The answer is $18.", True, False, True),
        ("The answer is **18**", True, False, True),
        ("It costs $18, or so.", True, False, True),
        ("so 18 ...", True, False, False),
        ("18..", True, False, False),
        ("The answer is 18 in 2 days", True, False, False),
        ("**Final Answer:** 18 eggs, which is 2 more", True, False, False),
        (r"$\boxed{18}$.", True, False, False),
        (r"$$\boxed{18}$$", True, False, False),
        ("\\[\n\\boxed{18 \\text{ dollars in 2 days}}\n\\]", True, False, False),
        ("Total-18", True, False, False),
        ("16-18", True, False, False),
        ("The answer is 3 + 15 = 18", True, False, True),
        ("The answer is 18 because 20 - 2 = 18 and 9 * 2 is 5", True, False, False),
        ("#### 2. Add them\n2 + 16 = 18", True, False, True),
        ("#### Step 3\nIt is 18", True, False, True),
        ("<think>#### 7</think>\n#### 18", True, False, True),
        ("18%", True, False, True),
        # wrong, and read as wrong
        ("\N{MINUS SIGN}18", False, False, True),
        ("-18", False, False, False),
        ("1/18", False, False, True),
        ("She has eighteen.", False, False, False),
        ("", False, False, False),
        ("#### 19", False, False, False),
        ("#### 18\n#### 19", False, True, False),
        ("...", False, False, False),
        ("#### 1" + "0" * 10_000, False, False, False),
    ],
)
def test_a_reply_is_read_by_number_and_by_lm_evals_rules_beside_it(text, correct, strict, flexible):
    verdict = gsm8k.score(EIGHTEEN, text)
    found = (verdict.correct, verdict.lm_eval_strict, verdict.lm_eval_flexible)
    assert found == (correct, strict, flexible), verdict


@pytest.mark.parametrize(
    ("text", "value", "correct"),
    [
        ("1,800", "1800", True),
        ("1800", "1,800", True),
        ("1{,}800", "1800", True),
        (r"\boxed{1{,}800}", "1800", True),
        ("#### 1 800", "1800", True),
        ("1'800", "1800", True),
        ("1\N{NARROW NO-BREAK SPACE}800", "1800", True),
        (r"\boxed{1\,800}", "1800", True),
        ("1,00,000", "100000", True),
        ("18,00", "18", True),
        ("18,00", "1800", False),
        ("1,800.50", "1800.5", True),
        ("\N{MINUS SIGN}18", "-18", True),
        ("-$18", "-18", True),
        ("$-18", "-18", True),
        ("x = - 18", "-18", True),
        ("- 18 eggs", "18", True),
        ("1/8", "8", False),
        ("1/8", "0.125", True),
        (r"\frac{36}{2}", "18", True),
        (".5", "0.5", True),
        ("5/0", "5", False),
    ],
)
def test_numbers_are_compared_by_value_however_they_are_written(text, value, correct):
    assert gsm8k.score(gold(value), text).correct == correct


@pytest.mark.parametrize(
    ("solution", "reply", "same"),
    [("#### 1,000", "#### 1,000.", True), ("#### 1000", "so 1,000.", True), ("#### 18", "so 18.00", False)],
)
def test_lm_evals_match_ignores_commas_and_a_last_dot_but_knows_no_numbers(solution, reply, same):
    answer = NumberAnswer(value=solution[5:], solution=solution)
    assert gsm8k.score(answer, reply).lm_eval_flexible is same


def test_the_verdict_by_lm_eval_does_not_depend_on_how_much_of_the_solution_is_given():
    short = EIGHTEEN.model_copy(update={"solution": "18"})
    for text in ("#### 18", "so 18.", "19", "$18,"):
        assert gsm8k.score(short, text) == gsm8k.score(EIGHTEEN, text)


WAYS_TO_ANSWER = [
    *("#### {}", "####{}", "#### ${}", "#### **{}**", "#### {} eggs", "#### {}."),
    *("The answer is {}.", "**Answer:** ${} in 7 days", "So the final answer would be {}, as 3 of 4 said."),
    *(r"$\boxed{{{}}}$", r"\[ \boxed{{\${}}} \]", "Thus she has {}", "3 x 6 = {}", "{}", "{} dollars", "({})"),
]
PROSE = st.text(alphabet=st.characters(exclude_characters="#\\", exclude_categories=["Cs", "N"]), max_size=60)


@given(
    value=st.integers(-(10**9), 10**9),
    way=st.sampled_from(WAYS_TO_ANSWER),
    written=st.sampled_from(["{}", "{:,}"]),
    before=PROSE,
    steps=st.lists(st.integers(-99, 999), max_size=4),
)
def test_a_right_answer_always_scores(value, way, written, before, steps):
    lines = [before.replace("answer", ""), *(f"then there are {step} of them" for step in steps)]
    text = "\n".join([*lines, way.format(written.format(value))])
    assert gsm8k.score(gold(str(value)), text).correct, text


@given(st.text(max_size=300))
def test_any_reply_has_a_verdict(text):
    assert gsm8k.score(EIGHTEEN, text).lm_eval_strict is not None


def test_a_row_is_asked_with_our_instruction_and_keeps_its_solution():
    row = {"question": "How many?", "answer": "Many.\n#### 1,800", "source": "other keys are no matter"}
    question = gsm8k.question_of(row, 3, "test.jsonl")
    assert question.id == "gsm8k-3"
    assert question.messages[0].content.startswith("How many?\n\n")
    assert question.answer == NumberAnswer(value="1,800", solution="Many.\n#### 1,800")


@pytest.mark.parametrize(
    "row", [{}, {"question": "q"}, {"question": "q", "answer": "18"}, {"question": "q", "answer": "#### many"}]
)
def test_a_row_without_a_number_as_answer_is_refused_by_its_line(row):
    with pytest.raises(WorkloadError, match="Line 7 of test.jsonl is no question"):
        gsm8k.question_of(row, 7, "test.jsonl")
