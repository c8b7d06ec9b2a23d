r"""GSM8K: word problems whose answer is a number. Their prompt, and two ways to score a reply.

Ours compares numbers: it looks for an announced answer first (`#### 18`, `\boxed{18}`, "the answer is 18"), and takes
the last number where there is none. Beside it stand the extraction and match rules of lm-eval's task `gsm8k` (version
3), as they are, so that results can be laid beside others; they compare texts, and so mark some right answers wrong.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from evals.errors import WorkloadError
from evals.questions import Message, NumberAnswer, Question, Verdict, damaged_line

SCORER_VERSION = "gsm8k-1"
INSTRUCTION = (
    "Solve the problem step by step. Then end with a line that holds four number signs and the answer as a bare "
    "number, without a unit, like this:\n#### 18"
)
MAX_DIGITS = 100
"""A longer run of digits is no answer to anything."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    question: str
    answer: str


def question_of(row: dict[str, Any], number: int, name: str) -> Question:
    """A row of the data set, `{question, answer}`, as we ask it.

    Raises:
        WorkloadError: it is no such row; `number` and `name` say which.
    """
    try:
        read = _Row.model_validate(row)
    except ValidationError as error:
        raise damaged_line(name, number, error) from error
    value = read.answer.rpartition("#### ")[2].strip()
    if "#### " not in read.answer or number_of(value) is None:
        raise WorkloadError(f"Line {number} of {name} is no question: its answer has no number after `#### `.")
    return Question(
        id=f"gsm8k-{number}",
        messages=(Message(role="user", content=f"{read.question}\n\n{INSTRUCTION}"),),
        answer=NumberAnswer(value=value, solution=read.answer),
    )


def score(answer: NumberAnswer, text: str) -> Verdict:
    """Judge a reply's text."""
    found = find_answer(text)
    wanted = number_of(answer.value)
    correct = found is not None and number_of(found) == wanted
    why_wrong = None if correct else "no number found" if found is None else f"{found} instead of {answer.value}"
    return Verdict(
        correct=correct,
        read=found,
        why_wrong=why_wrong,
        lm_eval_strict=_lm_eval_match(_lm_eval_strict(text), answer.solution),
        lm_eval_flexible=_lm_eval_match(_lm_eval_flexible(text), answer.solution),
    )


# --- our own rule ---------------------------------------------------------------------------------------------------

_GROUPS = "'\N{RIGHT SINGLE QUOTATION MARK}\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}"
_UNSIGNED = (
    r"(?:[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}(?![0-9])(?:\.[0-9]+)?"  # 1,800 and 1,00,000
    rf"|[0-9]{{1,3}}(?:[{_GROUPS}][0-9]{{3}})+(?![0-9])(?:\.[0-9]+)?"  # 1'800
    r"|[0-9]+,[0-9]{2}(?![0-9])"  # 18,00: a comma that groups nothing is a decimal one
    r"|[0-9]+(?:\.[0-9]+)?"
    r"|(?<![0-9])\.[0-9]+)"
)
# A hyphen is a sign only where nothing stands before it that it could join or subtract from.
_NUMBER = re.compile(rf"(?:(?<![\w)\]}}%.])-\$?|)(?:{_UNSIGNED})(?:\s?/\s?(?:{_UNSIGNED}))?")
_ANNOUNCED = re.compile(r"####(?!#)[ \t]*(?P<rest>[^\n]*)")
_ENUMERATED = re.compile(r"[*_]*[0-9]+[.):][*_]*\s+\S")
"""`#### 2. Add them up` is a heading."""
_DECORATION = re.compile(r"^(?:[\s$*_`=:(\[]|\\[a-z]+\{)*")
_BOXED = re.compile(r"\\boxed\s*\{")
_ANSWER_IS = re.compile(r"\banswer\b[^\n.:=]{0,60}?(?:\bis\b|\bwould be\b|:|=)(?P<rest>[^\n]*)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
_CLAUSE_END = re.compile(r",\s|[;(]|\b(?:because|since|as)\b")
_SPACED_THOUSANDS = re.compile(r"(?<![0-9.,])([0-9]{1,3})((?: [0-9]{3})+)(?![0-9])")


def find_answer(text: str) -> str | None:
    """The number that a reply gives as its answer, as it is written there but for signs of grouping and currency."""
    plain = _plain(text.rpartition("</think>")[2])
    return _after_marks(plain) or _in_box(plain) or _after_words(plain) or _last_number(plain)


def number_of(text: str) -> Fraction | None:
    """The value of a number as it is written: `1,800`, `$18.00`, `-3/4`; None where it is none."""
    found = _NUMBER.fullmatch(_plain(text).strip().rstrip(".").replace("%", "").removeprefix("$"))
    if found is None or len(found[0]) > MAX_DIGITS:
        return None
    upper, _, lower = found[0].partition("/")
    below = _value(lower) if lower else Fraction(1)
    return _value(upper) / below if below else None


def _value(text: str) -> Fraction:
    digits = re.sub(r"[^0-9.,-]", "", text)
    if re.search(r"^-?[0-9]+,[0-9]{2}$", digits):
        digits = digits.replace(",", ".")
    return Fraction(Decimal(digits.replace(",", "")))


def _plain(text: str) -> str:
    """The text with the signs of LaTeX and typography that stand in numbers replaced by their plain ones."""
    text = text.replace("\N{MINUS SIGN}", "-").replace("{,}", ",").replace("\\$", "$").replace("\\%", "%")
    text = re.sub(r"\\[,!;: ]", "", text)
    text = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", text)
    return re.sub(r"([=:]\s*)-\s+(?=[$0-9])", r"\1-", text)


def _after_marks(text: str) -> str | None:
    """The number right after the last `####`; words there, and headings, announce nothing."""
    for match in reversed(list(_ANNOUNCED.finditer(text))):
        rest = match["rest"]
        if _ENUMERATED.match(rest):
            continue
        rest = _SPACED_THOUSANDS.sub(_joined, _DECORATION.sub("", rest))
        if found := _NUMBER.match(rest):
            return found[0]
    return None


def _in_box(text: str) -> str | None:
    for match in reversed(list(_BOXED.finditer(text))):
        content = _SPACED_THOUSANDS.sub(_joined, _inside_braces(text[match.end() :]))
        if found := _first_or_result(content):
            return found
    return None


def _after_words(text: str) -> str | None:
    """The number after the last "answer is"."""
    for match in reversed(list(_ANSWER_IS.finditer(text))):
        rest = match["rest"].strip()
        if _ENUMERATED.match(rest):
            continue
        for clause in _CLAUSE_END.split(_SENTENCE_END.split(rest, maxsplit=1)[0]):
            if found := _first_or_result(clause):
                return found
    return None


def _last_number(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def _first_or_result(text: str) -> str | None:
    """Of `3 + 15 = 18 eggs` the 18: what follows the last equals sign, else the first number."""
    for part in (text.rpartition("=")[2], text):
        if found := _NUMBER.search(part):
            return found[0]
    return None


def _inside_braces(text: str) -> str:
    depth = 1
    for at, sign in enumerate(text):
        depth += (sign == "{") - (sign == "}")
        if depth == 0:
            return text[:at]
    return text


def _joined(match: re.Match[str]) -> str:
    return match[0].replace(" ", "")


# --- lm-eval's rules ------------------------------------------------------------------------------------------------

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")


def _lm_eval_strict(text: str) -> str:
    found = _STRICT.search(text)
    return found[1].strip() if found else "[invalid]"


def _lm_eval_flexible(text: str) -> str:
    found = [match[0] for match in _FLEXIBLE.finditer(text)]
    return found[-1].strip() if found else "[invalid]"


def _lm_eval_match(found: str, solution: str) -> bool:
    return _lm_eval_plain(found) == _lm_eval_plain(solution)


def _lm_eval_plain(text: str) -> str:
    for pattern in _IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()
