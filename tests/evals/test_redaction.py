"""What an endpoint says about the key it was sent goes nowhere."""

from __future__ import annotations

import asyncio
import json
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from evals.__main__ import describe
from evals.errors import EvalError
from evals.record import RequestRecord
from evals.redaction import NO_SECRETS, Redactor
from evals.report import Cell
from evals.runner import run_unit
from evals.stream_client import StreamClient
from tests.evals.canned import canned
from tests.evals.records import unit

KEY = "sk-attack/0123456789"
AUTHORIZATION = {"Authorization": f"Bearer {KEY}"}
SPEED = {"kind": "speed", "prompts": ["code"], "max_tokens": 8, "repeats": 1}
SWEEP = {"kind": "sweep", "concurrency": [1], "shapes": [{"input_len": 40, "output_len": 6}], "repeats": 1}


def http(body: bytes, status: int = 200, head: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\n%scontent-length: %d\r\n\r\n%s" % (status, head, len(body), body)


def events(*chunks: Any) -> bytes:
    stop = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    return http(b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in (*chunks, stop)))


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields}]}


CALL = {"id": KEY, "type": KEY, "function": {"name": KEY, "arguments": json.dumps({KEY: KEY})}}
ECHOES = {
    "a refusal as JSON": http(json.dumps({"error": {"message": f"no such key: Bearer {KEY}"}}).encode(), 401),
    "a refusal as text": http(f"Authorization: Bearer {KEY}".encode(), 401),
    "a refusal in pages": http(b"<p>" + b"x" * 480 + KEY.encode(), 403),
    "a refusal that is no message": http(json.dumps({"odd": {KEY: [KEY]}}).encode(), 401),
    "an event": events({"error": {"message": f"bad {KEY}"}}),
    "a named event": http(b"event: error\ndata: " + KEY.encode() + b"\n\n"),
    "an event that is no JSON": http(b"data: {" + b"x" * 105 + KEY.encode() + b"\n\n"),
    "an event of no shape": events([KEY]),
    "a redirect": http(b"", 302, b"location: http://evil/?key=%s&%s\r\n" % (KEY.encode(), quote(KEY, "").encode())),
    "a compression": http(b"x", 200, b"content-encoding: %s\r\n" % KEY.encode()),
    "the reply": events(delta(content=f"it is {KEY}"), delta(content="!")),
    "the reply in two chunks": events(delta(content=f"it is {KEY[:9]}"), delta(content=KEY[9:])),
    "the reasoning": events(delta(reasoning=KEY)),
    "a tool call": events(delta(tool_calls=[CALL])),
    "arguments that are no string": events(delta(tool_calls=[{"id": "a", "function": {"arguments": {KEY: [KEY]}}}])),
    "the finish reason": events({"choices": [{"delta": {"content": "x"}, "finish_reason": KEY}]}),
    "all at once": http(json.dumps({"message": KEY}).encode()),
    "words instead of a stream": http(KEY.encode()),
}
PARTS = (KEY, KEY[:12], KEY.replace("/", "%2F"), KEY.replace("/", "\\/"))


@pytest.mark.parametrize("answer", ECHOES.values(), ids=ECHOES.keys())
@pytest.mark.parametrize("work", [SPEED, SWEEP], ids=["speed", "sweep"])
def test_a_key_that_the_endpoint_echoes_is_in_no_file_and_no_line(
    answer: bytes, work: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTACKED_KEY", KEY)
    said: list[str] = []

    def tell(cell: Cell, _: int, __: int) -> None:
        said.append(describe(cell))

    async def measure(url: str) -> Any:
        return await run_unit(unit(work, base_url=url, endpoint={"api_key_env": "ATTACKED_KEY"}), tmp_path, tell)

    report = asyncio.run(canned(answer, measure))
    written = [path.read_text() for path in tmp_path.iterdir()]
    for part in PARTS:
        assert not [text for text in (*written, *said, str(report)) if part in text]


@pytest.mark.parametrize("status", [200, 401])
@pytest.mark.parametrize("body", [KEY, json.dumps({"tokens": {KEY: [KEY, 1]}}), json.dumps(KEY)])
def test_single_questions_tell_no_key(status: int, body: str) -> None:
    async def ask(url: str) -> str:
        async with StreamClient(url, headers=AUTHORIZATION) as client:
            try:
                return str(await client.get_json("/v1/models"))
            except EvalError as error:
                return "".join(traceback.format_exception(error))

    told = asyncio.run(canned(http(body.encode(), status), ask))
    assert KEY not in told
    assert "[key]" in told


def test_the_scheme_goes_with_the_key() -> None:
    assert Redactor(AUTHORIZATION).text(f"got 'Bearer {KEY}' and {KEY}") == "got '[key]' and [key]"


@pytest.mark.parametrize("key", ["none", "EMPTY"])
def test_a_key_that_guards_nothing_stays_an_ordinary_word(key: str) -> None:
    assert Redactor({"Authorization": f"Bearer {key}"}).text(f"it is {key}") == f"it is {key}"


def test_without_a_secret_nothing_is_changed() -> None:
    record = RequestRecord(id="r", status="ok", text="Bearer sk-1", tool_calls=[{"id": "a"}])
    NO_SECRETS.record(record)
    assert (record.text, record.tool_calls) == ("Bearer sk-1", [{"id": "a"}])
