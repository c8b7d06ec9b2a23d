import asyncio
import json

import pytest

from evals.fitting import Fitter, TokenLine
from evals.stream_client import StreamClient
from evals.sweep import SweepRun
from evals.workload import CellKey, PromptSource
from tests.evals.records import unit


def sweep(*, overhead=10.0, **endpoint):
    request = {"exact_length": {"ignore_eos": True}, "body": {"cache_prompt": False}}
    spec = unit({"kind": "sweep", "concurrency": [1, 8]}, endpoint={"request": request, **endpoint})
    # Without a tokenizer nothing is asked of the client.
    fitter = Fitter(
        client=StreamClient("http://127.0.0.1:9"), tokenize_path=None, line=TokenLine(overhead=overhead, per_word=1.0)
    )
    return SweepRun(spec=spec, prompts=PromptSource(7), fitter=fitter)


def key(input_len=64, output_len=32, concurrency=8):
    return CellKey(concurrency=concurrency, input_len=input_len, output_len=output_len, prompt=None, repeat=1)


def bodies(requests):
    return [json.loads(request.body) for request in requests]


def test_a_burst_is_of_unlike_requests_of_exact_length():
    requests = asyncio.run(sweep().requests(key(), 3))
    assert [request.id for request in requests] == [f"3-{number}" for number in range(8)]
    sent = bodies(requests)
    assert {(body["max_tokens"], body["ignore_eos"], body["cache_prompt"]) for body in sent} == {(32, True, False)}
    texts = [body["messages"][0]["content"] for body in sent]
    assert len({text.split()[0] for text in texts}) == 8
    assert {len(text.split()) for text in texts} == {54}


def test_the_same_cell_sends_other_prompts_on_each_repeat():
    run = sweep()
    first, second = (bodies(asyncio.run(run.requests(key(), ordinal))) for ordinal in (1, 2))
    assert not {body["messages"][0]["content"] for body in first} & {body["messages"][0]["content"] for body in second}


@pytest.mark.parametrize(("parallel", "expected"), [(2, 2), (None, 4), (32, 8)])
def test_the_warm_up_fills_the_slots_and_no_more(parallel, expected):
    requests = asyncio.run(sweep(parallel=parallel).warm_up(key()))
    assert len(requests) == expected
    assert {body["max_tokens"] for body in bodies(requests)} == {16}


@pytest.mark.parametrize(
    ("input_len", "output_len", "expected"),
    [
        (10, 32, "a prompt of 10 tokens is shorter than the chat template and one word, which take 11"),
        (80, 49, "80 + 49 = 129 tokens do not fit a context of 128"),
        (11, 32, None),
        (80, 48, None),
    ],
)
def test_what_the_endpoint_cannot_hold_is_infeasible(input_len, output_len, expected):
    assert sweep(context_tokens=128).infeasible(key(input_len, output_len)) == expected


def test_without_a_known_context_only_the_template_limits():
    assert sweep().infeasible(key(100_000, 1000)) is None
