import asyncio
import json

import pytest

from evals.cells import measure_cell
from evals.prompts.chat import CHAT_PROMPTS
from evals.spec import SpeedWork
from evals.speed import SpeedRun, summarise_speed
from evals.workload import PromptSource, plan_cells
from tests.evals.records import failed, known, record, unit

WORK = SpeedWork(prompts=("code", "story"), max_tokens=256, repeats=2)
KEYS = plan_cells(WORK)


def paced(gap_ms, **fields):
    """Three tokens `gap_ms` apart."""
    return record(at_ms=(50, 50 + gap_ms, 50 + 2 * gap_ms), tokens=(1, 1, 1), **fields)


def cells(*records):
    return [measure_cell(key, [one]) for key, one in zip(KEYS, records, strict=True)]


def test_speed_is_the_mean_over_repeats_and_the_geometric_mean_over_prompts():
    # In the order of the cells: code #1, story #1, code #2, story #2.
    speed = summarise_speed(WORK, cells(paced(10), paced(40), paced(5), paced(40)), source=None, drafting=False)
    code, story = speed.prompts
    assert code.decode_tok_s == pytest.approx((100 + 200) / 2)
    assert code.spread == pytest.approx(100 / 150)
    assert (code.n, code.ttft_ms) == (2, 50.0)
    assert story.decode_tok_s == pytest.approx(25)
    assert story.spread == pytest.approx(0)
    assert speed.geomean_decode_tok_s == pytest.approx((150 * 25) ** 0.5)
    assert speed.acceptance is None
    assert speed.missing == {"acceptance": "no drafter"}


def test_acceptance_is_over_all_requests_and_names_its_source():
    drafted = [paced(10, drafted=10, accepted=7), paced(10, drafted=30, accepted=9), paced(10), paced(10)]
    speed = summarise_speed(WORK, cells(*drafted), source="timings.draft_n", drafting=True)
    assert known(speed.acceptance).model_dump() == {
        "drafted": 40,
        "accepted": 16,
        "share": pytest.approx(0.4),
        "source": "timings.draft_n",
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [(None, "the engine's stream has no draft counts"), ("t.n", "the stream told no drafted token at t.n")],
)
def test_a_drafter_without_counts_has_no_acceptance_and_says_why(source, expected):
    speed = summarise_speed(WORK, cells(*[paced(10)] * 4), source=source, drafting=True)
    assert speed.acceptance is None
    assert speed.missing["acceptance"] == expected


def test_a_prompt_that_failed_leaves_no_geometric_mean_over_the_others():
    speed = summarise_speed(WORK, cells(paced(10), failed(), paced(10), failed()), source=None, drafting=False)
    assert speed.prompts[0].decode_tok_s == pytest.approx(100)
    assert (speed.prompts[1].decode_tok_s, speed.prompts[1].n) == (None, 0)
    assert speed.geomean_decode_tok_s is None
    assert speed.missing["geomean_decode_tok_s"] == "no decode speed of story"


def test_a_cell_is_one_greedy_request_with_the_prompt_behind_a_lead_of_its_own():
    run = SpeedRun(spec=unit({"kind": "speed"}), prompts=PromptSource(7))
    bodies = [json.loads(one.body) for key in KEYS for one in asyncio.run(run.requests(key, 1))]
    assert [body["max_tokens"] for body in bodies] == [256] * 4
    assert [body["temperature"] for body in bodies] == [0] * 4
    texts = [body["messages"][0]["content"] for body in bodies]
    assert [text.endswith(CHAT_PROMPTS[known(key.prompt)]) for key, text in zip(KEYS, texts, strict=True)] == [True] * 4
    assert len({text.split()[0] for text in texts}) == 4
    assert not any("ignore_eos" in body for body in bodies)


def test_the_warm_up_is_short_and_no_measured_prompt():
    run = SpeedRun(spec=unit({"kind": "speed"}), prompts=PromptSource(7))
    (warm_up,) = asyncio.run(run.warm_up(KEYS[0]))
    (first,) = asyncio.run(run.requests(KEYS[0], 1))
    assert json.loads(warm_up.body)["max_tokens"] == 16
    assert json.loads(warm_up.body)["messages"] != json.loads(first.body)["messages"]


def test_a_reply_as_long_as_the_context_is_infeasible():
    run = SpeedRun(spec=unit({"kind": "speed"}, endpoint={"context_tokens": 256}), prompts=PromptSource(7))
    assert "no room for a prompt" in known(run.infeasible(KEYS[0]))
