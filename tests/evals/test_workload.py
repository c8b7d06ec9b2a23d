import json
from itertools import islice

import pytest

from evals.errors import WorkloadError
from evals.prompts.chat import CHAT_PROMPTS
from evals.prompts.words import WORDS
from evals.spec import MAX_CONCURRENCY, EvalWork, Shape, SpeedWork, SweepWork
from evals.workload import PromptSource, chat_request, chat_text, plan_cells, workload_hash
from tests.evals.records import unit


def test_a_sweep_goes_by_shape_then_concurrency_then_repeat():
    work = SweepWork(
        concurrency=(1, 4),
        shapes=(Shape(input_len=512, output_len=128), Shape(input_len=128, output_len=512)),
        repeats=2,
    )
    assert [str(key) for key in plan_cells(work)] == [
        "c=1 512/128 #1",
        "c=1 512/128 #2",
        "c=4 512/128 #1",
        "c=4 512/128 #2",
        "c=1 128/512 #1",
        "c=1 128/512 #2",
        "c=4 128/512 #1",
        "c=4 128/512 #2",
    ]


def test_repeats_of_a_speed_prompt_lie_apart():
    work = SpeedWork(prompts=("code", "story"), repeats=2, max_tokens=8)
    assert [str(key) for key in plan_cells(work)] == ["c=1 code #1", "c=1 story #1", "c=1 code #2", "c=1 story #2"]


def test_the_default_work_has_the_promised_size():
    assert len(plan_cells(SpeedWork())) == 18
    assert len(plan_cells(SweepWork())) == 70


def test_an_unknown_prompt_is_refused_with_those_there_are():
    with pytest.raises(WorkloadError, match=r"Unknown prompt 'poem'.*code, advice, story"):
        plan_cells(SpeedWork(prompts=("code", "poem")))


@pytest.mark.parametrize(
    "work",
    [
        SpeedWork(prompts=()),
        SweepWork(concurrency=()),
        SweepWork(shapes=()),
        SpeedWork(prompts=("code", "code")),
        SweepWork(concurrency=(2, 2)),
    ],
)
def test_work_without_cells_or_with_a_cell_twice_is_refused(work):
    with pytest.raises(WorkloadError):
        plan_cells(work)


def test_equal_work_has_an_equal_hash_and_any_change_another():
    base = SweepWork()
    others = [
        SpeedWork(),
        SpeedWork(prompts=("code",)),
        SpeedWork(prompts=("story",)),
        SweepWork(repeats=4),
        SweepWork(concurrency=(1,)),
    ]
    assert workload_hash(base) == workload_hash(SweepWork())
    assert len({workload_hash(work) for work in [base, *others]}) == 6


def test_the_hash_of_the_default_sweep_is_what_it_was():
    # It changes when what is sent changes; then GENERATOR_VERSION goes up with it.
    assert workload_hash(SweepWork()) == "6a006f1803547a91b8b1a98dabd13b291e7f73913c661e01a1d53cecb3d71112"
    assert workload_hash(SpeedWork()) == "3ecb273d2e77bf88676cf97d0cbca3448f911407e2d241ae4684285390ed8d0f"


def test_the_word_list_is_clean_and_longer_than_the_largest_burst():
    assert len(set(WORDS)) == len(WORDS) > MAX_CONCURRENCY
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


def test_a_burst_of_the_largest_size_shares_no_first_word():
    source = PromptSource(seed=3)
    source.take(500)  # whatever was sent before
    first = [next(words) for words in source.take(MAX_CONCURRENCY)]
    assert len(set(first)) == MAX_CONCURRENCY


def test_no_two_prompts_of_a_unit_begin_with_the_same_two_words():
    source = PromptSource(seed=3)
    leads = [tuple(islice(words, 2)) for words in source.take(10_000)]
    assert len(set(leads)) == len(leads)


def test_prompts_come_from_the_seed_and_the_start_alone():
    def texts(seed, start):
        return [" ".join(islice(words, 30)) for words in PromptSource(seed, start).take(5)]

    assert texts(7, 1) == texts(7, 1)
    assert not set(texts(7, 1)) & set(texts(8, 1))
    assert not set(texts(7, 1)) & set(texts(7, 2))


def test_a_chat_text_is_the_prompt_after_a_line_of_its_own():
    source = PromptSource(seed=3)
    first, second = chat_text("code", source.lead()), chat_text("code", source.lead())
    assert first.split()[0] != second.split()[0]
    assert first.endswith(CHAT_PROMPTS["code"])
    assert len(first.splitlines()[0]) < 80


def test_a_body_carries_the_engines_fields_and_those_of_an_exact_length():
    spec = unit(
        {"kind": "sweep"},
        endpoint={"request": {"body": {"cache_prompt": False}, "stream_options": {"include_usage": True, "x": 1}}},
    )
    request = chat_request(spec, request_id="1-0", text="hello", max_tokens=9, extra={"ignore_eos": True})
    assert request.path == "/v1/chat/completions"
    assert json.loads(request.body) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 9,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "x": 1},
        "cache_prompt": False,
        "ignore_eos": True,
    }


@pytest.mark.parametrize(
    "work",
    [
        SpeedWork(prompts=("code",) * 1000, repeats=100),
        SweepWork(repeats=100, shapes=tuple(Shape(input_len=n, output_len=1) for n in range(1, 202)), concurrency=(1,)),
        SweepWork(
            repeats=100, concurrency=(1024,), shapes=tuple(Shape(input_len=n, output_len=1) for n in range(1, 11))
        ),
        EvalWork(dataset="gsm8k", items_sha256="0" * 64, items=10**15),
    ],
    ids=["cells of a speed unit", "cells of a sweep", "requests", "questions"],
)
def test_a_unit_that_would_never_end_is_refused_with_its_size_before_it_is_listed(work):
    with pytest.raises(WorkloadError, match=r"cells and [\d,]+ requests; a unit may have 20,000 and 1,000,000"):
        plan_cells(work)


def test_a_unit_of_twenty_thousand_cells_is_still_one():
    shapes = tuple(Shape(input_len=length, output_len=1) for length in range(1, 201))
    assert len(plan_cells(SweepWork(repeats=100, concurrency=(1,), shapes=shapes))) == 20_000
