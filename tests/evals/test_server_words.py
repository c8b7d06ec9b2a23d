from __future__ import annotations

import pytest

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
