from __future__ import annotations

import time

import pytest

from evals.redaction import Redactor
from evals.server_words import MAX_WORDS, words_of_body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"error": "model not found"}', "model not found"),
        (b'{"object": "error", "message": "no"}', "no"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        (b'"just a string"', "just a string"),
        (b'{"odd": 1}', '{"odd": 1}'),
        (b"<html><head><title>502</title></head><body><h1>Bad &amp; gone</h1></body></html>", "Bad & gone"),
        (b"<html><head><title>502 Bad Gateway</title></head><body></body></html>", "502 Bad Gateway"),
        (b"upstream\n  died", "upstream died"),
        (b"caf\xff", "caf\ufffd"),
        (b"", ""),
        (b"null", "null"),
    ],
)
def test_the_message_is_found_in_every_usual_kind_of_error_body(body: bytes, words: str) -> None:
    assert words_of_body(body) == words


def test_a_long_message_is_cut() -> None:
    assert len(words_of_body(b"x" * 10_000)) == MAX_WORDS


@pytest.mark.parametrize(
    "body",
    [
        b"<script" * 30_000,
        b"<script>" * 30_000,
        b"<head>" * 30_000,
        b"<" * 200_000,
        b"<title" * 30_000,
        b"<p>" + b"&" * 200_000,
        b"<p>&#" + b"9" * 5_000 + b";",
        b"[" * 100_000,
        b'{"error":' * 100_000,
        b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}",
        b"9" * 5_000,
        b" " * 30_000_000,
    ],
    ids=lambda body: f"{body[:10]!r} x {len(body)}",
)
def test_a_hostile_body_is_read_in_little_time_and_with_bounded_words(body: bytes) -> None:
    started = time.process_time()
    assert len(words_of_body(body)) <= MAX_WORDS
    # Quadratic reading takes minutes; this takes milliseconds, and a machine may be slow.
    assert time.process_time() - started < 2


def test_words_far_behind_the_beginning_are_found_in_json() -> None:
    # FastAPI repeats the request, which may be long, before it says what is wrong.
    assert words_of_body(b'{"detail": [{"input": "%s", "msg": "too long"}]}' % (b"x" * 100_000)) == "too long"


def test_scripts_and_styles_are_no_words() -> None:
    page = b"<HTML><Style>p {}</STYLE ><script>if (a < b) {}</script><p>the engine</p><b>died</b>"
    assert words_of_body(page) == "the engine died"
    assert words_of_body(b"<no tag at all") == "<no tag at all"


@pytest.mark.parametrize("before", [0, 470, 480, 490, 495])
@pytest.mark.parametrize("shape", [b"%s", b'{"error": {"message": "%s"}}', b"<p>%s</p>"])
def test_a_message_cut_through_a_key_shows_no_part_of_it(before: int, shape: bytes) -> None:
    key = "sk-0123456789abcdefghij"
    body = shape % (b"x" * before + key.encode() + b"y" * 600)
    assert "sk-" not in words_of_body(body, Redactor({"Authorization": f"Bearer {key}"}))
