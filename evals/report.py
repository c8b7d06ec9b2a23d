"""The result of one unit: a versioned model that explains itself.

The order of fields is part of the format (`tests/evals/golden_report_fields.txt`). A value that could not be had is
null, and `missing` beside it says why. Sections that this version never fills are there and null.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field, JsonValue

from evals.self_check import ClientCheck
from rigs.facts import Border
from rigs.serving import Arm

SCHEMA_VERSION = 1

Kind = Literal["speed", "sweep", "mixed", "longctx", "longmixed", "eval", "steptime"]
CellStatus = Literal["ok", "infeasible", "unsupported", "failed", "not_run"]
ReportStatus = Literal["running", "ok", "infeasible", "unsupported", "failed", "cancelled"]
"""`running`: made of the cells so far, never written to a file. `infeasible`: no cell can be run on this endpoint.
`unsupported`: the endpoint lacks what the unit needs, e.g. tools, and nothing was sent."""

DEFINITIONS: dict[str, str] = {
    "clock": "Monotonic, on the machine that sends. A request's clock starts when its bytes reach the socket; "
    "time it waited in our own loop before that is send_spread_ms of `client`.",
    "tokens": "Output and input tokens are the server's own `usage`, never counted chunks.",
    "ttft_ms": "From the start of the request to the arrival of the first chunk with content, reasoning or a tool "
    "call.",
    "itl_ms": "Time per token between chunks: a gap counts once for each token that the later chunk brings, divided "
    "by their number. Null where the stream does not tell the tokens of its chunks.",
    "icl_ms": "Gap between two chunks as such, whatever number of tokens they bring.",
    "tpot_ms": "(last token - first token) / tokens that the chunks after the first brought, one value a request: its "
    "own mean of itl_ms. A token that is counted but has no chunk, as some servers' end token, is not among them. Null "
    "where the stream does not tell the tokens of its chunks.",
    "e2e_ms": "From the start of the request to the arrival of its last token, not to the end of the stream.",
    "decode_tok_s": "1000 / tpot_ms of each request; of a cell the mean over its ok requests; of a speed prompt the "
    "mean over its repeats; geomean_decode_tok_s is the geometric mean over prompts.",
    "e2e_tok_s": "Output tokens / e2e of each request; of a cell the mean over its ok requests. Null where usage "
    "told 0 tokens for a reply that has some.",
    "total_output_tok_s": "Output tokens of all ok requests of a cell / (last token of all - first send of all).",
    "percentiles": "Linear interpolation between samples; n is the number of samples. With n below 100 a p99 is "
    "little more than the largest sample.",
    "lengths": "asked: tokens wanted, prompts with their chat template. got: mean over ok requests, by the server's "
    "count. mismatched: ok requests whose count was another than asked; of a speed prompt, whose reply may end by "
    "itself, those above it.",
    "cached_tokens": "Sum over ok requests of the prompt tokens that the server took from a cache.",
    "status": "Of a cell: failed where above 1 % of its requests failed, infeasible where the endpoint cannot hold "
    "it (nothing is sent), not_run where the unit ended before. A unit fails where above 1 % of all requests failed. "
    "Figures are over ok requests only.",
    "spread": "(largest - smallest) / mean of decode_tok_s over the repeats of a prompt.",
    "acceptance": "Accepted / drafted tokens over all ok requests, by the engine's own count.",
    "score": "Right answers / questions asked, a failed request being a wrong answer (not_answered). score_low and "
    "score_high are the 95 % range by Wilson. cut_off: replies that ended at max_tokens.",
    "lm_eval": "lm_eval_strict and lm_eval_flexible: the share that is right by the extraction and match rules of "
    "lm-eval's task gsm8k (version 3), which compare texts; the prompt is our own, without examples.",
    "client": "What the measuring process did to the figures: client_limited means that they are, at least in part, "
    "its own.",
    "workload_hash": "SHA-256 of lengths, counts and texts without the seed: equal hashes may be compared.",
}


class Distribution(Border):
    """Samples in one unit, which the field's name tells."""

    mean: float
    p50: float
    p90: float
    p99: float
    n: int


class RequestCounts(Border):
    ok: int
    failed: int


class Lengths(Border):
    asked: int | None
    got: float | None
    mismatched: int = 0


class Scores(Border):
    """What came of the questions of a cell."""

    n: int
    correct: int
    not_answered: int
    """Failed requests, which count as wrong."""
    cut_off: int
    """Replies that ended at `max_tokens`."""
    lm_eval_strict: int | None = None
    lm_eval_flexible: int | None = None
    """Right by lm-eval's rules of these names; null for a data set without such rules."""


class Cell(Border):
    """One burst, or one request of a speed unit. A line of `cells.jsonl` is one of these."""

    concurrency: int
    input_len: int | None
    output_len: int
    prompt: str | None
    repeat: int
    status: CellStatus
    reason: str | None = None
    requests: RequestCounts = RequestCounts(ok=0, failed=0)
    ttft_ms: Distribution | None = None
    itl_ms: Distribution | None = None
    icl_ms: Distribution | None = None
    tpot_ms: Distribution | None = None
    e2e_ms: Distribution | None = None
    decode_tok_s: float | None = None
    e2e_tok_s: float | None = None
    total_output_tok_s: float | None = None
    input_tokens: Lengths
    output_tokens: Lengths
    cached_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    scores: Scores | None = None
    """Of an eval."""
    failures: dict[str, int] = Field(default_factory=dict)
    """Reason -> number of requests that failed for it."""
    client: ClientCheck | None = None
    started_at: str | None = None
    finished_at: str | None = None
    missing: dict[str, str] = Field(default_factory=dict)
    """Field that is null although the cell ran -> why."""


class SpeedPrompt(Border):
    prompt: str
    decode_tok_s: float | None
    e2e_tok_s: float | None
    ttft_ms: float | None
    n: int
    """Repeats that the means are over."""
    spread: float | None


class Acceptance(Border):
    drafted: int
    accepted: int
    share: float
    source: str


class Speed(Border):
    prompts: list[SpeedPrompt]
    geomean_decode_tok_s: float | None
    acceptance: Acceptance | None
    missing: dict[str, str] = Field(default_factory=dict)


class Eval(Border):
    dataset: str
    n: int
    """Questions asked so far; of a finished unit all of them."""
    correct: int
    score: float
    score_low: float
    score_high: float
    not_answered: int
    cut_off: int
    lm_eval_strict: float | None
    lm_eval_flexible: float | None
    scorer_version: str
    items_path: str
    """Every question's raw reply and verdict."""


class Steady(Border):
    """The part of a load in which at least the wanted number of requests was in flight."""

    window_s: float
    total_output_tok_s: float | None


class Telemetry(Border):
    samples_path: str
    power_w: Distribution | None = None
    temperature_c: Distribution | None = None
    memory_used_mib: Distribution | None = None


class Failure(Border):
    where: str
    """`c=4 512/128 #1`, the cell's name."""
    reason: str
    count: int
    """Requests; 0 where none was sent."""


class Report(Border):
    schema_version: Literal[1] = SCHEMA_VERSION
    report_id: str
    kind: Kind
    status: ReportStatus
    reason: str | None
    started_at: str | None
    finished_at: str | None
    seed: int
    definitions: dict[str, str]
    workload_hash: str
    arm: Arm
    cells: list[Cell]
    speed: Speed | None
    eval: Eval | None
    steady: Steady | None
    client: ClientCheck | None
    telemetry: Telemetry | None
    cost_usd: float | None
    provenance: dict[str, JsonValue]
    requests_path: str
    failures: list[Failure]
    warnings: list[str]


def report_schema() -> str:
    """The JSON Schema of a report, as text that ends in a newline."""
    return json.dumps(Report.model_json_schema(mode="serialization"), indent=2) + "\n"
