"""Reports to be drawn: as measured, hostile, large, and full of nulls."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from evals.render.__main__ import make
from evals.report import Failure, Report
from evals.self_check import ClientCheck
from tests.evals.records import failed, record, unit
from tests.evals.test_report import report_of

HOSTILE = (
    "<script>window.pwned=1</script><img src=x onerror=window.pwned=1>\"'></textarea></style></script><!--"
    "{{7*7}}{% raw %}javascript:alert(1) &amp; $\\frac{$ \x00\x1b[31m\u202e]]>|#\n_"
)
DRAFTER = {"method": "ngram", "draft_tokens": 4}
ARM = {"rig": "desk", "accelerator": "L4", "engine": "llamacpp", "engine_version": "b11549", "argv": ["serve", "-c"]}
FULL_SWEEP = {
    "kind": "sweep",
    "concurrency": [1, 2, 4, 8, 16, 32, 64],
    "shapes": [{"input_len": 512, "output_len": 8}, {"input_len": 128, "output_len": 16}],
    "repeats": 5,
}
SPEED = {"kind": "speed", "prompts": ["code", "story"], "max_tokens": 256, "repeats": 2}


def sweep(work=FULL_SWEEP, arm=ARM, **fields) -> Report:
    """Times that grow with the load, over some decades, and a little apart from repeat to repeat."""
    chance = random.Random(1)

    def records(key):
        first = key.input_len * 0.2 * key.concurrency * chance.uniform(0.95, 1.1)
        at = tuple(first + 10 * number for number in range(key.output_len))
        tokens = (1,) * key.output_len
        sent = {"at_ms": at, "tokens": tokens, "input_tokens": key.input_len, **fields}
        return [record(str(number), **sent) for number in range(key.concurrency)]

    client = ClientCheck(cpu_share=0.25, loop_lag_p99_ms=1.2, peak_in_flight=64, asked_in_flight=64)
    return report_of(unit(work, arm=arm), records, client=client)


def speed(*, drafter=None, gap_ms=10.0) -> Report:
    fields: dict[str, Any] = {"drafted": 8, "accepted": 3} if drafter else {}
    at = tuple(50 + gap_ms * number for number in range(4))
    arm = ARM | ({"drafter": drafter} if drafter else {})
    return report_of(unit(SPEED, arm=arm), lambda _: [record(at_ms=at, **fields)])


def hostile() -> Report:
    """A report in which everything that comes from outside tries to get out."""
    report = report_of(unit(SPEED, arm={"rig": HOSTILE, "argv": [HOSTILE]}), lambda _: [failed(HOSTILE)])
    ok = speed(drafter=DRAFTER)
    cells = [cell.model_copy(update={"prompt": HOSTILE, "missing": {HOSTILE: HOSTILE}}) for cell in ok.cells]
    assert ok.speed is not None
    told = [line.model_copy(update={"prompt": HOSTILE}) for line in ok.speed.prompts[:1]]
    return report.model_copy(
        update={
            "report_id": HOSTILE,
            "reason": HOSTILE,
            "cells": [*report.cells, *cells],
            "speed": ok.speed.model_copy(update={"prompts": told, "missing": {"geomean_decode_tok_s": HOSTILE}}),
            "client": ClientCheck(verdict="client_limited", reasons=(HOSTILE,), limits={HOSTILE: 1.0}),
            "provenance": {HOSTILE: [HOSTILE]},
            "definitions": {HOSTILE: HOSTILE},
            "warnings": [HOSTILE, "x" * 3000],
            "failures": [Failure(where=HOSTILE, reason=HOSTILE * 30, count=1)],
            "requests_path": HOSTILE,
            "started_at": HOSTILE,
            "workload_hash": HOSTILE,
        }
    )


def page_of(report: Report, against: Report | None = None) -> str:
    ((_, content),) = make(report, against, html=Path("page.html"), png=None)
    return content.decode()
