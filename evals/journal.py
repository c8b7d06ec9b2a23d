"""The files of a run: what is finished stays finished, whatever happens to the process or the disk.

`requests.jsonl` gets the requests of a cell, and `items_results.jsonl` its questions' results, before `cells.jsonl`
gets the cell, so a recorded cell has its requests and results.
What a cut-off run left behind that line (half a line, requests of an unrecorded cell) is removed at the next start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from evals.cells import key_of
from evals.errors import EvalError, WorkloadError
from evals.questions import ItemResult
from evals.record import RequestRecord
from evals.report import Cell, Report
from evals.spec import UnitSpec
from evals.workload import CellKey
from rigs.errors import RigFullError

SPEC, CELLS, REQUESTS, RESULTS, REPORT, STARTS, LOCK = (
    "spec.json",
    "cells.jsonl",
    "requests.jsonl",
    "items_results.jsonl",
    "report.json",
    "starts.log",
    "lock",
)
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""No space, over quota, over the process's own limit."""
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Prompts, replies and addresses are their owner's, whatever the umask."""


class _RequestLine(BaseModel):
    """What is read back of a line of `requests.jsonl` or `items_results.jsonl`."""

    cell: int


@dataclass(kw_only=True)
class Journal:
    run_dir: Path
    plan: Sequence[CellKey]
    cells: dict[CellKey, Cell] = field(default_factory=dict[CellKey, Cell])
    """Finished cells, those of earlier starts included."""
    starts: list[str] = field(default_factory=list[str])
    """When each start of this unit was, this one last."""

    def record(self, cell: Cell, records: Sequence[RequestRecord], results: Sequence[ItemResult] = ()) -> None:
        """Raises: RigFullError: nothing of this cell is recorded, and everything before it still is."""
        ordinal = self.plan.index(key_of(cell)) + 1
        lines = b"".join(_encode({"cell": ordinal, **_fields(record)}) + b"\n" for record in records)
        if lines:
            _append(self.run_dir / REQUESTS, lines)
        if results:
            _append(self.run_dir / RESULTS, _lines(results))
        _append(self.run_dir / CELLS, cell.model_dump_json().encode() + b"\n")
        self.cells[key_of(cell)] = cell

    def results(self) -> list[ItemResult]:
        """Raises: WorkloadError: a line is not one of ours."""
        path = self.run_dir / RESULTS
        if not path.exists():
            return []
        try:
            return [ItemResult.model_validate_json(line) for line in path.read_bytes().splitlines()]
        except ValidationError as error:
            raise WorkloadError(f"{path} holds a line that is no result. Use another folder.") from error

    def rewrite(self, cells: Sequence[Cell], results: Sequence[ItemResult]) -> None:
        """Replace what is recorded by the same with other scores. Raises: RigFullError: the old ones stay."""
        _replace(self.run_dir / RESULTS, _lines(results))
        _replace(self.run_dir / CELLS, _lines(cells))
        self.cells = {key_of(cell): cell for cell in cells}

    def write_report(self, report: Report) -> None:
        """A reader sees the old report or the new one. Raises: RigFullError."""
        _replace(self.run_dir / REPORT, report.model_dump_json(indent=2).encode() + b"\n")


@contextmanager
def open_journal(run_dir: Path, spec: UnitSpec, plan: Sequence[CellKey], now: str) -> Generator[Journal]:
    """The journal of `spec` in `run_dir`, mended and held against a second process.

    Raises:
        WorkloadError: the folder holds another unit, or another process measures into it.
        RigFullError: no space to begin.
    """
    with _translated(run_dir):
        _make_folder(run_dir)
        lock = os.fdopen(_open(run_dir / LOCK, os.O_APPEND), "ab")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WorkloadError(
                f"Another process is measuring into {run_dir}. Wait for it, or use another folder."
            ) from None
        _pin_spec(run_dir / SPEC, spec)
        _make_private(run_dir)
        journal = Journal(run_dir=run_dir, plan=plan)
        known = {key: number for number, key in enumerate(plan, 1)}

        def is_cell(line: bytes) -> bool:
            try:
                cell = Cell.model_validate_json(line)
            except ValidationError:
                return False
            key = key_of(cell)
            if key not in known:
                raise WorkloadError(
                    f"{run_dir / CELLS} holds the cell {key}, which is not one of {spec.report_id}. Use another folder."
                )
            return journal.cells.setdefault(key, cell) is cell

        _keep(run_dir / CELLS, is_cell)
        recorded = {known[key] for key in journal.cells}
        for name in (REQUESTS, RESULTS):
            _keep(run_dir / name, lambda line: _ordinal(line) in recorded)
        _append(run_dir / STARTS, now.encode() + b"\n")
        journal.starts = (run_dir / STARTS).read_text().split()
        yield journal


def read_spec(path: Path) -> UnitSpec:
    """Raises: WorkloadError: no such file, or not a unit."""
    try:
        return UnitSpec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise WorkloadError(f"Cannot read the unit {path}: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise WorkloadError(
            f"{path} is not a unit: {where + ': ' if where else ''}{first['msg']}"
            f"{f' (and {error.error_count() - 1} more)' if error.error_count() > 1 else ''}."
        ) from error


def _pin_spec(path: Path, spec: UnitSpec) -> None:
    if not path.exists():
        _replace(path, spec.model_dump_json(indent=2).encode() + b"\n")
    elif read_spec(path) != spec:
        raise WorkloadError(
            f"{path.parent} holds another unit ({read_spec(path).report_id}), whose cells must not mix with those of "
            f"{spec.report_id}. Use another folder, or run the unit in its spec.json."
        )


def _lines(models: Sequence[BaseModel]) -> bytes:
    return b"".join(model.model_dump_json().encode() + b"\n" for model in models)


def _fields(record: RequestRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in RequestRecord.__slots__}


def _encode(record: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(record)
    except orjson.JSONEncodeError:
        # A model may send half a surrogate pair, which is no UTF-8; the standard library escapes it.
        return json.dumps(record).encode()


def _ordinal(line: bytes) -> int | None:
    try:
        return _RequestLine.model_validate_json(line).cell
    except ValidationError:
        return None


def _keep(path: Path, wanted: Callable[[bytes], bool]) -> None:
    """Remove the lines that are torn or not wanted."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    good = [line.endswith(b"\n") and wanted(line) for line in lines]
    if all(good):
        return
    kept = [line for line, is_good in zip(lines, good, strict=True) if is_good]
    with _translated(path):
        if all(good[: len(kept)]):
            # Only the end goes, the usual case: cutting needs no space.
            os.truncate(path, sum(map(len, kept)))
        else:
            _replace(path, b"".join(kept))


def _append(path: Path, lines: bytes) -> None:
    """All of `lines` on the disk, or none of them."""
    with _translated(path):
        descriptor = _open(path, os.O_APPEND)
        try:
            before = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, lines)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    with _translated(path):
        try:
            descriptor = _open(temporary, os.O_TRUNC)
            try:
                _write_all(descriptor, content)
            finally:
                os.close(descriptor)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _make_folder(path: Path) -> None:
    """With those above it that are missing. One that is there is somebody's choice, and keeps its mode."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    path.chmod(PRIVATE_FOLDER)


def _make_private(run_dir: Path) -> None:
    """The files that an earlier start, or whoever wrote the unit, left with another mode."""
    for path in (run_dir / name for name in (SPEC, CELLS, REQUESTS, REPORT, STARTS)):
        # Another owner's file, in a folder that is shared on purpose, cannot be changed and need not be.
        with contextlib.suppress(PermissionError):
            if path.is_file() and not path.is_symlink():
                path.chmod(PRIVATE_FILE)


def _open(path: Path, how: int) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, PRIVATE_FILE)
    with contextlib.suppress(PermissionError):  # as above
        os.fchmod(descriptor, PRIVATE_FILE)
    return descriptor


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


@contextmanager
def _translated(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise RigFullError(
                f"No space left for {path} ({error.strerror}). What was recorded before is whole: free space and run "
                f"the same unit again, it goes on from there."
            ) from error
        raise EvalError(f"Cannot write {path}: {error.strerror}.") from error
