import asyncio
import json
import re
from typing import Any

import pytest

from evals.errors import EvalError, WorkloadError
from evals.fitting import calibrate
from evals.record import Request, RequestRecord
from evals.workload import PromptSource
from tests.evals.records import failed, record, unit

OVERHEAD = 11


def words_are_tokens(text):
    return text.split()


def letters_are_tokens(text):
    return list(text)


def pieces_are_tokens(text):
    """Like a usual vocabulary: short words are one token, long ones two or three, marks stand alone."""
    return [piece for word in re.findall(r" ?\w+|[^\w\s]", text) for piece in re.findall(r".{1,6}", word)]


class TokenServer:
    """Counts a prompt as `vocabulary` does, plus the template's tokens."""

    def __init__(self, vocabulary, *, answer=None, usage=True, refuse=None):
        self.vocabulary = vocabulary
        self.answer = answer
        self.usage = usage
        self.refuse = refuse
        self.sent = []
        self.tokenizer_calls = 0

    async def stream(self, request: Request) -> RequestRecord:
        body = json.loads(request.body)
        self.sent.append(body)
        if self.refuse:
            return failed(self.refuse)
        count = self.count_as_chat(body["messages"][0]["content"])
        return record(input_tokens=count if self.usage else None)

    async def post_json(self, path: str, body: Any) -> Any:
        assert path == "/tokenize"
        self.tokenizer_calls += 1
        await asyncio.sleep(0)
        if isinstance(self.answer, EvalError):
            raise self.answer
        return self.answer if self.answer is not None else {"tokens": list(self.vocabulary(body["content"]))}

    def count_as_chat(self, text):
        return len(self.vocabulary(text)) + OVERHEAD


def sweep_unit(tokenize_path: str | None = "/tokenize", **endpoint):
    return unit({"kind": "sweep"}, endpoint={"request": {"tokenize_path": tokenize_path}, **endpoint})


async def fit(server, length, count, spec=None):
    prompts = PromptSource(7)
    fitter = await calibrate(server, spec or sweep_unit(), prompts)
    return await fitter.fit(prompts.take(count), length)


@pytest.mark.parametrize("vocabulary", [words_are_tokens, letters_are_tokens, pieces_are_tokens])
@pytest.mark.parametrize("length", [OVERHEAD + 1, OVERHEAD + 2, 31, 64, 128, 512])
def test_prompts_have_exactly_the_asked_length_with_a_tokenizer(vocabulary, length):
    server = TokenServer(vocabulary)
    texts = asyncio.run(fit(server, length, 6))
    assert [server.count_as_chat(text) for text in texts] == [length] * 6


@pytest.mark.parametrize("vocabulary", [words_are_tokens, pieces_are_tokens])
def test_fitting_takes_few_tokenizer_calls(vocabulary):
    server = TokenServer(vocabulary)
    asyncio.run(fit(server, 512, 20))
    assert server.tokenizer_calls <= 20 * 8


def test_fitted_prompts_of_a_burst_still_begin_with_words_of_their_own():
    texts = asyncio.run(fit(TokenServer(pieces_are_tokens), 128, 50))
    assert len({text.split()[0] for text in texts}) == 50


def test_calibration_asks_for_one_token_of_a_prompt_that_is_not_used_again():
    server = TokenServer(pieces_are_tokens)
    texts = asyncio.run(fit(server, 64, 10))
    assert [body["max_tokens"] for body in server.sent] == [1]
    leads = {" ".join(body["messages"][0]["content"].split()[:2]) for body in server.sent}
    assert not leads & {" ".join(text.split()[:2]) for text in texts}


def test_without_a_tokenizer_two_requests_give_tokens_per_word():
    server = TokenServer(words_are_tokens)
    texts = asyncio.run(fit(server, 200, 3, sweep_unit(tokenize_path=None)))
    assert [server.count_as_chat(text) for text in texts] == [200] * 3
    assert len(server.sent) == 2
    assert server.tokenizer_calls == 0


def test_without_a_tokenizer_lengths_are_near_where_words_differ():
    server = TokenServer(pieces_are_tokens)
    texts = asyncio.run(fit(server, 512, 5, sweep_unit(tokenize_path=None)))
    assert all(abs(server.count_as_chat(text) - 512) < 40 for text in texts)


def test_calibration_prompts_fit_a_small_context():
    server = TokenServer(words_are_tokens)
    asyncio.run(fit(server, 64, 1, sweep_unit(tokenize_path=None, context_tokens=128)))
    longest = max(len(body["messages"][0]["content"].split()) for body in server.sent)
    assert longest + OVERHEAD < 64


def test_the_smallest_prompt_is_the_template_and_one_word():
    fitter = asyncio.run(calibrate(TokenServer(words_are_tokens), sweep_unit(), PromptSource(7)))
    assert fitter.smallest_prompt == OVERHEAD + 1


def test_a_refused_calibration_request_says_so_in_the_servers_words():
    with pytest.raises(WorkloadError, match=r"calibration request .* failed: http 401: who are you"):
        asyncio.run(fit(TokenServer(words_are_tokens, refuse="http 401: who are you"), 64, 1))


def test_a_server_without_usage_is_told_apart():
    with pytest.raises(WorkloadError, match="include_usage"):
        asyncio.run(fit(TokenServer(words_are_tokens, usage=False), 64, 1))


@pytest.mark.parametrize("answer", [{"token_ids": [1]}, [1, 2], "no", {"tokens": 3}])
def test_a_tokenizer_with_another_answer_is_refused(answer):
    with pytest.raises(WorkloadError, match="instead of a list `tokens`"):
        asyncio.run(fit(TokenServer(words_are_tokens, answer=answer), 64, 1))


def test_a_tokenizer_that_fails_for_one_prompt_fails_the_fit_in_its_own_words():
    async def run():
        server = TokenServer(words_are_tokens)
        prompts = PromptSource(7)
        fitter = await calibrate(server, sweep_unit(), prompts)
        server.answer = EvalError("POST /tokenize: http 500: overloaded")
        await fitter.fit(prompts.take(4), 64)

    with pytest.raises(EvalError, match="overloaded"):
        asyncio.run(run())


def test_a_tokenizer_that_finds_more_than_the_server_counts_is_refused():
    server = TokenServer(words_are_tokens, answer={"tokens": [0] * 400})
    with pytest.raises(WorkloadError, match="cannot be fitted"):
        asyncio.run(fit(server, 64, 1))
