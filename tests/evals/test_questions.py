import hashlib
import json

import pytest

from evals.errors import WorkloadError
from evals.questions import (
    Message,
    NumberAnswer,
    Question,
    decode_questions,
    encode_questions,
    read_questions,
    read_rows,
)
from evals.spec import EvalWork

QUESTIONS = [
    Question(
        id=f"q{number}",
        messages=(Message(role="user", content=f"What is {number} + 1?\u2028"),),
        answer=NumberAnswer(value=str(number + 1), solution=f"#### {number + 1}"),
    )
    for number in range(3)
]


def work_of(content: bytes, **fields) -> EvalWork:
    known = {"dataset": "gsm8k", "items_sha256": hashlib.sha256(content).hexdigest(), "items": 3}
    return EvalWork.model_validate(known | fields)


def test_questions_come_back_as_they_were_and_a_limit_takes_the_first(tmp_path):
    content = encode_questions(QUESTIONS)
    (tmp_path / "items.jsonl").write_bytes(content)
    assert read_questions(tmp_path, work_of(content)) == QUESTIONS
    assert read_questions(tmp_path, work_of(content, limit=2)) == QUESTIONS[:2]
    assert read_questions(tmp_path, work_of(content, limit=9)) == QUESTIONS


def test_another_file_than_the_unit_names_is_refused_with_both_hashes(tmp_path):
    content = encode_questions(QUESTIONS)
    (tmp_path / "items.jsonl").write_bytes(content.replace(b"What is 1", b"What is 7"))
    with pytest.raises(WorkloadError, match="their sha256 is .*, the unit says " + work_of(content).items_sha256):
        read_questions(tmp_path, work_of(content))


def test_a_damaged_file_names_its_line(tmp_path):
    content = encode_questions(QUESTIONS)
    (tmp_path / "items.jsonl").write_bytes(content[:-30])
    with pytest.raises(WorkloadError, match=r"Line 3 of .*items\.jsonl is no question: Invalid JSON"):
        read_questions(tmp_path, work_of(content))


def test_a_missing_file_and_a_wrong_count_are_said(tmp_path):
    content = encode_questions(QUESTIONS)
    with pytest.raises(WorkloadError, match="Cannot read the questions"):
        read_questions(tmp_path, work_of(content))
    (tmp_path / "items.jsonl").write_bytes(content)
    with pytest.raises(WorkloadError, match="holds 3 questions, the unit says 4"):
        read_questions(tmp_path, work_of(content, items=4))


def test_an_id_that_comes_twice_is_refused():
    with pytest.raises(WorkloadError, match="Line 2 of items is a second question 'q0'"):
        decode_questions(encode_questions([QUESTIONS[0], QUESTIONS[0]]), "items")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "Line 2 of f is no JSON:"),
        (b"[1]", "is no JSON object"),
        (b"\xff{}", "Line 2 of f is no JSON"),
    ],
)
def test_a_row_that_is_no_object_is_refused_by_its_line(line, words):
    with pytest.raises(WorkloadError, match=words):
        read_rows(b'{"a": 1}\n' + line, "f")


def test_rows_may_hold_any_sign_have_empty_lines_and_lack_the_last_line_end():
    rows = [{"a": "x\u2028y"}, {"a": 2}]
    first, second = (json.dumps(row, ensure_ascii=False).encode() for row in rows)
    content = b"\xef\xbb\xbf" + first + b"\r\n\n" + second
    assert read_rows(content, "f") == [(1, rows[0]), (3, rows[1])]
    with pytest.raises(WorkloadError, match="f holds no question"):
        read_rows(b"\n", "f")
