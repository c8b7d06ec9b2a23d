"""The truth: rigs, jobs, units, pins and events, in one SQLite file that servers and the worker share.

Server processes write job rows and read; the worker does the rest. Every method is one transaction, so whoever is
killed leaves either all of it or nothing. Control flow (which step of a job comes next) is the workflow engine's, in a
file of its own.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from mcp_server.rows import Event, Job, JobStatus, RigRow, ServedEngine, Unit, utc_now
from rigs.errors import RigsError, UnknownNameError, UsageError
from rigs.facts import RigFacts
from rigs.host_keys import SshAddress

SCHEMA_VERSION = 2

_metadata = sa.MetaData()
_meta = sa.Table("meta", _metadata, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Text))
_rigs = sa.Table(
    "rigs",
    _metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("address", sa.Text),
    sa.Column("rig_home", sa.Text, nullable=False),
    sa.Column("python", sa.Text),
    sa.Column("facts", sa.Text, nullable=False),
    sa.Column("served", sa.Text),
    sa.Column("attached_at", sa.Text, nullable=False),
    sa.Column("used_at", sa.Text, nullable=False),
)
_jobs = sa.Table(
    "jobs",
    _metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job_id", sa.Text, nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("rig", sa.Text),
    sa.Column("args", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, default=False),
    sa.Column("done", sa.Integer),
    sa.Column("total", sa.Integer),
    sa.Column("detail", sa.Text, nullable=False, default=""),
    sa.Column("error", sa.Text),
    sa.Column("result", sa.Text),
    sa.Column("created_at", sa.Text, nullable=False),
    sa.Column("started_at", sa.Text),
    sa.Column("finished_at", sa.Text),
    sa.Index("jobs_by_status", "status", "seq"),
    sqlite_autoincrement=True,
)
_units = sa.Table(
    "units",
    _metadata,
    sa.Column("unit_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text, nullable=False),
    sa.Column("rig", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("folder", sa.Text, nullable=False),
    sa.Column("headline", sa.Text, nullable=False, default=""),
    sa.Column("created_at", sa.Text, nullable=False),
)
_pins = sa.Table(
    "pins",
    _metadata,
    sa.Column("checkpoint", sa.Text, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("pinned_at", sa.Text, nullable=False),
)
_events = sa.Table(
    "events",
    _metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job_id", sa.Text, nullable=False, index=True),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
)


class StateError(RigsError):
    """The state file cannot be used as it is."""


class State:
    """One open state file. Safe to use from several threads and processes at once."""

    def __init__(self, database: Path) -> None:
        """Open, and create or migrate as needed; losing a race with another process to do so is fine.

        Raises:
            StateError: the file is damaged, or was made by a newer rigbench.
        """
        self._engine = sa.create_engine(f"sqlite:///{database}", connect_args={"timeout": 30.0})
        event.listen(self._engine, "connect", _on_connect)
        event.listen(self._engine, "begin", _on_begin)
        self._reader = self._engine.execution_options(write=False)
        self._database = database
        self._migrate()
        if os.stat(database).st_mode & 0o077:  # noqa: PTH116 - one call
            database.chmod(0o600)

    def close(self) -> None:
        self._engine.dispose()

    @property
    def installation(self) -> str:
        """The mark of this state on whatever it makes elsewhere."""
        with self._reading() as db:
            return str(db.execute(sa.select(_meta.c.value).where(_meta.c.key == "installation")).scalar())

    @contextmanager
    def _reading(self) -> Generator[sa.Connection]:
        """Open a read that never waits for a writer."""
        with _translated(self._database), self._reader.connect() as db:
            yield db

    @contextmanager
    def _writing(self) -> Generator[sa.Connection]:
        """Open a transaction that is written whole or not at all."""
        with _translated(self._database), self._engine.begin() as db:
            yield db

    # --- jobs -------------------------------------------------------------------------------------------------------

    def add_job(self, kind: str, rig: str | None, args: Mapping[str, Any]) -> str:
        """Queue a job; the worker finds it. Returns its id, short enough to be said."""
        job_id = f"{kind}-{secrets.token_hex(4)}"
        row = {"job_id": job_id, "kind": kind, "rig": rig, "args": json.dumps(dict(args)), "status": JobStatus.QUEUED}
        with self._writing() as db:
            db.execute(_jobs.insert().values(**row, created_at=utc_now()))
        return job_id

    def job(self, job_id: str) -> Job:
        """Return one job.

        Raises:
            UnknownNameError: no such job; the message lists the latest.
        """
        with self._reading() as db:
            row = db.execute(_jobs.select().where(_jobs.c.job_id == job_id)).mappings().first()
            if row is None:
                latest = db.execute(sa.select(_jobs.c.job_id).order_by(_jobs.c.seq.desc()).limit(10)).scalars().all()
                raise UnknownNameError("job", job_id, latest, "list_jobs shows them all.")
        return _job(row)

    def jobs(self, *, rig: str | None = None, unfinished: bool = False, limit: int = 50) -> list[Job]:
        """Return the latest jobs, newest first."""
        query = _jobs.select().order_by(_jobs.c.seq.desc()).limit(limit)
        if rig is not None:
            query = query.where(_jobs.c.rig == rig)
        if unfinished:
            query = query.where(_jobs.c.status.in_([JobStatus.QUEUED, JobStatus.RUNNING]))
        with self._reading() as db:
            return [_job(row) for row in db.execute(query).mappings()]

    def take_next(self) -> list[Job]:
        """Mark as running, and return, the oldest queued job of every idle rig, and every queued job without a rig."""
        busy = sa.select(_jobs.c.rig).where(_jobs.c.status == JobStatus.RUNNING, _jobs.c.rig.is_not(None))
        queued = _jobs.select().where(_jobs.c.status == JobStatus.QUEUED).order_by(_jobs.c.seq)
        with self._reading() as db:
            if db.execute(queued.limit(1)).first() is None:
                return []
        taken: list[Job] = []
        with self._writing() as db:
            lanes: set[str] = {str(rig) for rig in db.execute(busy).scalars()}
            for row in db.execute(queued).mappings().all():
                rig: str | None = row["rig"]
                if rig is None or rig not in lanes:
                    started = {"status": JobStatus.RUNNING, "started_at": utc_now()}
                    db.execute(_jobs.update().where(_jobs.c.seq == row["seq"]).values(**started))
                    taken.append(_job(row))
                if rig is not None:
                    lanes.add(rig)
        return taken

    def running(self) -> list[str]:
        with self._reading() as db:
            query = sa.select(_jobs.c.job_id).where(_jobs.c.status == JobStatus.RUNNING).order_by(_jobs.c.seq)
            return [str(job_id) for job_id in db.execute(query).scalars()]

    def set_progress(self, job_id: str, *, done: int | None = None, total: int | None = None, detail: str = "") -> None:
        """Tell how far a job is; counts that are not given stay."""
        values: dict[str, object] = {"detail": detail[:500]}
        values |= {name: count for name, count in (("done", done), ("total", total)) if count is not None}
        with self._writing() as db:
            db.execute(_jobs.update().where(_jobs.c.job_id == job_id).values(**values))

    def set_result(self, job_id: str, result: dict[str, Any]) -> None:
        with self._writing() as db:
            db.execute(_jobs.update().where(_jobs.c.job_id == job_id).values(result=json.dumps(result)))

    def finish_job(self, job_id: str, status: JobStatus, *, error: str | None = None) -> None:
        """Set the final status; a job that is finished stays as it is."""
        values = {"status": status, "error": error, "finished_at": utc_now()}
        unfinished = _jobs.c.status.in_([JobStatus.QUEUED, JobStatus.RUNNING])
        with self._writing() as db:
            row = db.execute(
                _jobs.update().where(_jobs.c.job_id == job_id, unfinished).values(**values).returning(_jobs.c.rig)
            ).first()
            if row is not None and row.rig is not None:
                db.execute(_rigs.update().where(_rigs.c.name == row.rig).values(used_at=utc_now()))

    def request_cancel(self, job_id: str) -> Job:
        """End a queued job at once; ask a running one to end. A finished job stays as it is."""
        with self._writing() as db:
            queued = (_jobs.c.job_id == job_id) & (_jobs.c.status == JobStatus.QUEUED)
            ended = {"status": JobStatus.CANCELLED, "cancel_requested": True, "finished_at": utc_now()}
            db.execute(_jobs.update().where(queued).values(**ended))
            running = (_jobs.c.job_id == job_id) & (_jobs.c.status == JobStatus.RUNNING)
            db.execute(_jobs.update().where(running).values(cancel_requested=True))
        return self.job(job_id)

    def cancel_requested(self, job_id: str) -> bool:
        with self._reading() as db:
            query = sa.select(_jobs.c.cancel_requested).where(_jobs.c.job_id == job_id)
            return bool(db.execute(query).scalar())

    def add_event(self, job_id: str, message: str) -> None:
        with self._writing() as db:
            db.execute(_events.insert().values(job_id=job_id, at=utc_now(), message=message[:4000]))

    def events(self, job_id: str) -> list[Event]:
        query = sa.select(_events.c.seq, _events.c.at, _events.c.message).where(_events.c.job_id == job_id)
        with self._reading() as db:
            return [Event(seq=row.seq, at=row.at, message=row.message) for row in db.execute(query.order_by("seq"))]

    # --- rigs -------------------------------------------------------------------------------------------------------

    def put_rig(self, rig: RigRow) -> None:
        """Insert or replace."""
        with self._writing() as db:
            db.execute(_rigs.delete().where(_rigs.c.name == rig.name))
            db.execute(_rigs.insert().values(**_rig_values(rig)))

    def add_rig(self, rig: RigRow, conflict: Callable[[RigRow], str | None]) -> None:
        """Insert or replace, unless `conflict` has words against any other rig: looked at and written as one act.

        Raises:
            UsageError: those words.
        """
        with self._writing() as db:
            for row in db.execute(_rigs.select()).mappings():
                other = _rig(row)
                if other.name != rig.name and (words := conflict(other)):
                    raise UsageError(words)
            db.execute(_rigs.delete().where(_rigs.c.name == rig.name))
            db.execute(_rigs.insert().values(**_rig_values(rig)))

    def rig(self, name: str) -> RigRow:
        """Return one rig.

        Raises:
            UnknownNameError: no such rig; the message lists them.
        """
        with self._reading() as db:
            row = db.execute(_rigs.select().where(_rigs.c.name == name)).mappings().first()
            if row is None:
                names = db.execute(sa.select(_rigs.c.name)).scalars().all()
                raise UnknownNameError("rig", name, names, "attach_rig adds one.")
        return _rig(row)

    def rigs(self) -> list[RigRow]:
        with self._reading() as db:
            return [_rig(row) for row in db.execute(_rigs.select().order_by(_rigs.c.name)).mappings()]

    def set_served(self, rig: str, served: ServedEngine | None) -> None:
        text = served.model_dump_json() if served else None
        with self._writing() as db:
            db.execute(_rigs.update().where(_rigs.c.name == rig).values(served=text, used_at=utc_now()))

    def remove_rig(self, name: str) -> None:
        with self._writing() as db:
            db.execute(_rigs.delete().where(_rigs.c.name == name))

    # --- units and pins ---------------------------------------------------------------------------------------------

    def put_unit(self, unit: Unit) -> None:
        """Insert, or replace what is known of it."""
        with self._writing() as db:
            db.execute(_units.delete().where(_units.c.unit_id == unit.unit_id))
            db.execute(_units.insert().values(**unit.model_dump()))

    def unit(self, unit_id: str) -> Unit:
        """Return one unit; its id is the report's.

        Raises:
            UnknownNameError: no such report; the message lists the latest.
        """
        with self._reading() as db:
            row = db.execute(_units.select().where(_units.c.unit_id == unit_id)).mappings().first()
            if row is None:
                query = sa.select(_units.c.unit_id).order_by(_units.c.created_at.desc()).limit(10)
                raise UnknownNameError("report", unit_id, db.execute(query).scalars().all(), "list_reports shows all.")
        return Unit.model_validate(dict(row))

    def units(self, limit: int = 50) -> list[Unit]:
        query = _units.select().order_by(_units.c.created_at.desc()).limit(limit)
        with self._reading() as db:
            return [Unit.model_validate(dict(row)) for row in db.execute(query).mappings()]

    def pin(self, checkpoint: str) -> str | None:
        """Return the sha256 that the first download of a checkpoint without a held hash set."""
        with self._reading() as db:
            return db.execute(sa.select(_pins.c.sha256).where(_pins.c.checkpoint == checkpoint)).scalar()

    def set_pin(self, checkpoint: str, sha256: str) -> None:
        """Pin once; a later hash never replaces it."""
        row = {"checkpoint": checkpoint, "sha256": sha256, "pinned_at": utc_now()}
        with self._writing() as db:
            db.execute(_pins.insert().prefix_with("OR IGNORE").values(**row))

    # --- schema -----------------------------------------------------------------------------------------------------

    def _migrate(self) -> None:
        with self._writing() as db:
            fresh = not sa.inspect(db).has_table("meta")
            _metadata.create_all(db)
            db.execute(_meta.insert().prefix_with("OR IGNORE").values(key="schema", value=str(SCHEMA_VERSION)))
            mark = _meta.insert().prefix_with("OR IGNORE").values(key="installation", value=secrets.token_hex(8))
            db.execute(mark)
            found = int(db.execute(sa.select(_meta.c.value).where(_meta.c.key == "schema")).scalar() or 0)
            if found > SCHEMA_VERSION:
                raise StateError(
                    f"The state was made by a newer rigbench (schema {found}, this one knows {SCHEMA_VERSION}). "
                    "Upgrade rigbench, or set RIGBENCH_HOME to another folder."
                )
            for step in () if fresh else _MIGRATIONS[found - 1 :]:
                for statement in step:
                    db.execute(sa.text(statement))
            db.execute(_meta.update().where(_meta.c.key == "schema").values(value=str(SCHEMA_VERSION)))


_MIGRATIONS: Sequence[Sequence[str]] = (("ALTER TABLE rigs ADD COLUMN address TEXT",),)
"""Statements from version n + 1 to n + 2, at index n; forward only."""


@contextmanager
def _translated(database: Path) -> Generator[None]:
    try:
        yield
    except exc.OperationalError as error:
        raise StateError(
            f"The state file {database} cannot be used: {error.orig}. See that its disk has space and is writable."
        ) from error
    except exc.DatabaseError as error:
        raise StateError(
            f"The state file {database} cannot be read: {error.orig}. "
            "Move it away to start anew; reports stay in the folder runs beside it."
        ) from error


def _on_connect(connection: Any, _: object) -> None:
    # Begin by ourselves (below): the driver's own habit is to begin late, which lets two writers read the same row.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _on_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("write", True) else "BEGIN")


def _job(row: sa.RowMapping) -> Job:
    values = dict(row)
    values.pop("seq")
    values["args"] = json.loads(values["args"])
    values["result"] = json.loads(values["result"]) if values["result"] is not None else None
    return Job.model_validate(values)


def _rig_values(rig: RigRow) -> dict[str, Any]:
    values = rig.model_dump(include={"name", "kind", "rig_home", "python", "attached_at", "used_at"})
    values["address"] = rig.address.model_dump_json() if rig.address else None
    values["facts"] = rig.facts.model_dump_json()
    values["served"] = rig.served.model_dump_json() if rig.served else None
    return values


def _rig(row: sa.RowMapping) -> RigRow:
    values = dict(row)
    values["address"] = SshAddress.model_validate_json(values["address"]) if values["address"] else None
    values["facts"] = RigFacts.model_validate_json(values["facts"])
    values["served"] = ServedEngine.model_validate_json(values["served"]) if values["served"] else None
    return RigRow.model_validate(values)
