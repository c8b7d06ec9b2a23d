"""Where an eval's questions come from: our samples, a file, an address, the hub. All become one `items.jsonl`."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
from pydantic import JsonValue

from evals import bfcl, gsm8k
from evals.errors import WorkloadError
from evals.questions import ITEMS, Question, decode_questions, encode_questions, read_rows
from evals.spec import Dataset, EvalWork
from mcp_server.question_source import HUB, SAMPLE, QuestionSource, check_source, is_address
from rigs.errors import MissingExtraError, RemoteError, UsageError

HUB_REPOSITORY, HUB_CONFIGURATION, HUB_SPLIT = "openai/gsm8k", "main", "test"
HUB_REVISION = "cc7b047b6e5bb11b4f1af84efc572db110a51b3c"
MAX_BYTES = 64 * 1024 * 1024
"""More than any data set of questions; a wrong address may hold anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Questions, ready to be laid beside a unit."""

    dataset: Dataset
    content: bytes
    """Of `items.jsonl`."""
    count: int
    provenance: dict[str, JsonValue]
    """Where they came from, for the report."""

    def work(self, *, limit: int | None, concurrency: int, max_tokens: int) -> EvalWork:
        return EvalWork(
            dataset=self.dataset,
            items_sha256=hashlib.sha256(self.content).hexdigest(),
            items=self.count,
            # A limit that leaves nothing out is none, so that both runs are the same workload.
            limit=limit if limit is not None and limit < self.count else None,
            concurrency=concurrency,
            max_tokens=max_tokens,
        )


def load_questions(source: QuestionSource, cache: Path | None = None) -> Loaded:
    """Fetch, check and normalise. Blocks. `cache`: a folder for what came from addresses, by hash.

    Raises:
        UsageError: `check_source`, a file that cannot be read or has another hash, or a missing library.
        RemoteError: the address or the hub did not answer as it should.
        WorkloadError: a line is damaged; the message names it.
    """
    check_source(source)
    if source.source == HUB:
        return _from_hub(source.dataset)
    if source.source == SAMPLE:
        folder = files("evals.prompts")
        name = f"{source.dataset}_sample.jsonl"
        content = folder.joinpath(name).read_bytes()
        answers = folder.joinpath("bfcl_simple_sample_answers.jsonl").read_bytes()
        questions = _read(source.dataset, content, name, answers, "the sample's answers")
        return _loaded(source.dataset, questions, {"source": SAMPLE})
    content = _bytes_of(source.source, source.sha256, cache)
    told: dict[str, JsonValue] = {"source": source.source, "sha256": hashlib.sha256(content).hexdigest()}
    answers = b""
    if source.answers is not None:
        answers = _bytes_of(source.answers, source.answers_sha256, cache)
        told |= {"answers": source.answers, "answers_sha256": hashlib.sha256(answers).hexdigest()}
    questions = _read(source.dataset, content, source.source, answers, source.answers or "")
    return _loaded(source.dataset, questions, told)


def _loaded(dataset: Dataset, questions: list[Question], told: dict[str, JsonValue]) -> Loaded:
    content = encode_questions(questions)
    decode_questions(content, ITEMS)  # as the rig will read it: an id that comes twice shows here
    return Loaded(dataset=dataset, content=content, count=len(questions), provenance={"questions": told})


def _read(dataset: Dataset, content: bytes, name: str, answers: bytes, answers_name: str) -> list[Question]:
    rows = read_rows(content, name)
    if dataset == "gsm8k":
        return [gsm8k.question_of(row, number, name) for number, row in rows]
    by_id = bfcl.answers_by_id(read_rows(answers, answers_name), answers_name)
    return [bfcl.question_of(row, number, name, by_id) for number, row in rows]


def _bytes_of(place: str, sha256: str | None, cache: Path | None) -> bytes:
    if not is_address(place):
        try:
            content = Path(place).expanduser().read_bytes()
        except OSError as error:
            raise UsageError(f"Cannot read {place}: {error.strerror}.") from error
        _require_hash(content, sha256, place)
        return content
    assert sha256 is not None
    kept = cache / sha256 if cache else None
    if kept and kept.exists() and hashlib.sha256(content := kept.read_bytes()).hexdigest() == sha256:
        return content
    content = _download(place)
    _require_hash(content, sha256, place)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_bytes(content)
        part.replace(kept)
    return content


def _require_hash(content: bytes, sha256: str | None, place: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise UsageError(f"{place} is another file than asked for: its sha256 is {found}, not {sha256}.")


def _download(address: str) -> bytes:
    content = bytearray()
    try:
        with httpx.stream("GET", address, follow_redirects=True, timeout=30.0) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > MAX_BYTES:
                    raise UsageError(f"{address} is larger than {MAX_BYTES >> 20} MiB, which no file of questions is.")
    except httpx.HTTPStatusError as error:
        raise RemoteError(f"{address} answered {error.response.status_code}. Check the address.") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RemoteError(f"Cannot fetch {address}: {str(error) or type(error).__name__}.") from error
    return bytes(content)


def _from_hub(dataset: Dataset) -> Loaded:
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise MissingExtraError("A data set of the hub", "datasets") from error
    where = f"{HUB_REPOSITORY} at revision {HUB_REVISION[:12]}"
    try:
        rows: Iterable[dict[str, Any]] = library.load_dataset(
            HUB_REPOSITORY, HUB_CONFIGURATION, split=HUB_SPLIT, revision=HUB_REVISION
        )
        listed = list(enumerate(rows, 1))
    # The library lets through whatever its own libraries raise; each means that the questions cannot be had.
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as error:
        raise RemoteError(
            f"The data set {where} cannot be loaded: {type(error).__name__}: {str(error)[:300]}. "
            f"A file with its sha256 works without the hub: source=PATH."
        ) from error
    if not listed:
        raise WorkloadError(f"The data set {where} holds no question.")
    questions = [gsm8k.question_of(row, number, where) for number, row in listed]
    return _loaded(dataset, questions, {"source": f"hub {HUB_REPOSITORY}", "revision": HUB_REVISION})
