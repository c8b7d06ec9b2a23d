"""Where questions come from, each way for real; addresses are on loopback."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from pydantic import ValidationError

from evals.errors import WorkloadError
from evals.questions import decode_questions
from mcp_server.question_source import QuestionSource
from mcp_server.questions import load_questions
from rigs.errors import MissingExtraError, RemoteError, UsageError
from tests.evals.test_bfcl import NAME, ROW

PROBLEMS = b'{"question": "2 + 2?", "answer": "#### 4"}\n{"question": "3 + 3?", "answer": "#### 6"}\n'
CALLS = json.dumps(ROW).encode()
ANSWERS = json.dumps({"id": "q1", "ground_truth": [{NAME: {"text": ["it"]}}]}).encode()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def web(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve these files; the list tells what was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args, **more):
            pass

        def do_GET(self):
            asked.append(self.path)
            content = files.get(self.path)
            self.send_response(302 if self.path == "/moved" else 200 if content is not None else 404)
            self.send_header("Location", "/problems")
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("dataset", ["gsm8k", "bfcl_simple"])
def test_the_sample_has_six_questions_and_is_the_same_each_time(dataset) -> None:
    loaded = load_questions(QuestionSource(dataset=dataset))
    assert loaded.count == len(decode_questions(loaded.content, "items.jsonl")) == 6
    assert loaded.provenance == {"questions": {"source": "sample"}}
    work = loaded.work(limit=6, concurrency=2, max_tokens=99)
    assert (work.items, work.limit, work.items_sha256) == (6, None, sha256(loaded.content))
    assert load_questions(QuestionSource(dataset=dataset)) == loaded


def test_a_file_is_read_and_its_hash_told_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_bytes(PROBLEMS)
    loaded = load_questions(QuestionSource(dataset="gsm8k", source=str(path)))
    assert loaded.count == 2
    assert loaded.provenance == {"questions": {"source": str(path), "sha256": sha256(PROBLEMS)}}
    load_questions(QuestionSource(dataset="gsm8k", source=str(path), sha256=sha256(PROBLEMS)))
    with pytest.raises(UsageError, match=f"its sha256 is {sha256(PROBLEMS)}, not {'0' * 64}"):
        load_questions(QuestionSource(dataset="gsm8k", source=str(path), sha256="0" * 64))


def test_a_pair_of_files_is_joined_by_id(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_bytes(CALLS)
    (tmp_path / "a.json").write_bytes(ANSWERS)
    source = QuestionSource(dataset="bfcl_simple", source=str(tmp_path / "q.json"), answers=str(tmp_path / "a.json"))
    (question,) = decode_questions(load_questions(source).content, "items.jsonl")
    assert (question.id, len(question.tools or ())) == ("q1", 1)


def test_an_address_is_fetched_once_and_then_found_by_its_hash(tmp_path: Path) -> None:
    with web({"/problems": PROBLEMS}) as (address, asked):
        source = QuestionSource(dataset="gsm8k", source=f"{address}/moved", sha256=sha256(PROBLEMS))
        first = load_questions(source, tmp_path / "cache")
        assert load_questions(source, tmp_path / "cache") == first
        assert asked == ["/moved", "/problems"]
        # A damaged copy is no copy.
        (tmp_path / "cache" / sha256(PROBLEMS)).write_bytes(b"x")
        assert load_questions(source, tmp_path / "cache") == first
        assert len(asked) == 4


def test_an_address_that_holds_something_else_is_refused_and_not_kept(tmp_path: Path) -> None:
    with web({"/problems": PROBLEMS}) as (address, _):
        source = QuestionSource(dataset="gsm8k", source=f"{address}/problems", sha256="0" * 64)
        with pytest.raises(UsageError, match="is another file than asked for"):
            load_questions(source, tmp_path / "cache")
        missing = QuestionSource(dataset="gsm8k", source=f"{address}/no", sha256="0" * 64)
        with pytest.raises(RemoteError, match="answered 404"):
            load_questions(missing)
    with pytest.raises(RemoteError, match="Cannot fetch"):
        load_questions(missing)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dataset": "gsm8k", "source": "data/test.jsonl"}, "is none of: 'sample', 'hub', an absolute path"),
        ({"dataset": "gsm8k", "source": "/no/such.jsonl"}, "There is no file /no/such.jsonl"),
        ({"dataset": "gsm8k", "source": "http://127.0.0.1/x"}, "is an address: give sha256="),
        ({"dataset": "gsm8k", "sha256": "0" * 64}, "leave out sha256"),
        ({"dataset": "gsm8k", "source": "/x", "answers": "/y"}, "leave out answers"),
        ({"dataset": "bfcl_simple", "source": "/x"}, "give answers= as well"),
        ({"dataset": "bfcl_simple", "source": "hub"}, "not on the hub as a data set"),
        (
            {"dataset": "bfcl_simple", "source": "http://x/q", "sha256": "0" * 64, "answers": "http://x/a"},
            "give answers_sha256=",
        ),
    ],
)
def test_what_cannot_be_loaded_is_refused_before_anything_is(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_questions(QuestionSource.model_validate(given))


@pytest.mark.parametrize("given", [{"dataset": "mmlu"}, {"dataset": "gsm8k", "sha256": "short"}])
def test_an_unknown_data_set_and_a_hash_that_is_none_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        QuestionSource.model_validate(given)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (PROBLEMS + b"{", "Line 3 of .* is no JSON"),
        (PROBLEMS + b'{"question": "x"}', "Line 3 of .* is no question: answer: Field required"),
        (b"", "holds no question"),
    ],
)
def test_a_damaged_file_names_its_line(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "test.jsonl").write_bytes(content)
    with pytest.raises(WorkloadError, match=words):
        load_questions(QuestionSource(dataset="gsm8k", source=str(tmp_path / "test.jsonl")))


def test_the_hub_without_its_library_names_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as where it is not installed
    with pytest.raises(MissingExtraError, match=r"uv tool install 'rigbench\[datasets\]'"):
        load_questions(QuestionSource(dataset="gsm8k", source="hub"))
