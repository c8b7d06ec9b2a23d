"""Finding, starting and ending the worker: one per state directory, held by a file lock.

The lock tells whether a worker lives; `ready` tells which version it is. A worker that is older than we are is asked
to end: its jobs go on in the new one, for they are durable and what they run on rigs is detached.

`python -m mcp_server.daemon` is the worker itself. It takes the lock before it loads anything heavy, so that the time
in which a second one could be started in vain is short.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from mcp_server import log
from mcp_server.config import Config, load
from mcp_server.rows import utc_now
from mcp_server.state import SCHEMA_VERSION
from mcp_server.version import VERSION

LOG_LIMIT_BYTES = 5_000_000
BOOT_S = 5.0
"""For so long after a start nobody else starts one; a worker that died at its start is tried again after that."""
LOCK_TRIES = 150
"""A tenth of a second each: as long as an older worker may take to end."""

logger = logging.getLogger(__name__)


class Ready(BaseModel):
    """What a worker writes once it takes jobs."""

    pid: int
    version: str
    schema_version: int
    started_at: str


def worker_pid(config: Config) -> int | None:
    """Return the process that holds the lock, or None."""
    lock = config.worker_folder / "lock"
    try:
        with lock.open("r+") as file:
            # Shared, so that two who look at the same time do not take each other for a worker.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        with contextlib.suppress(ValueError):
            return int(lock.read_text().strip())
        return 0  # it holds the lock and has not yet written its number
    return None


def ready(config: Config) -> Ready | None:
    """Return what the worker wrote when it became ready; None where none lives or it is not yet ready."""
    pid = worker_pid(config)
    try:
        found = Ready.model_validate_json((config.worker_folder / "ready").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    return found if pid is not None and found.pid == pid else None


def ensure_worker(config: Config) -> None:
    """See that a worker of our version lives, without waiting for it. Any number of callers leave one."""
    pid = worker_pid(config)
    if pid is not None:
        found = ready(config)
        if found is None or not _is_older(found):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGTERM)
    starting = config.worker_folder / "starting"
    if starting.exists() and abs(time.time() - starting.stat().st_mtime) < BOOT_S:
        return
    starting.touch()
    start_worker(config)


def start_worker(config: Config) -> None:
    """Start a detached worker; where another one lives it ends by itself."""
    path = config.worker_folder / "log"
    _rotate(path)
    with path.open("ab") as file:
        # By way of a shell that ends at once: the worker is then nobody's child here, and leaves no zombie.
        subprocess.run(
            ["sh", "-c", '"$@" &', "sh", sys.executable, "-m", "mcp_server.daemon"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "RIGBENCH_HOME": str(config.home)},
            check=True,
        )


def stop_worker(config: Config) -> int | None:
    """Ask the worker to end; its jobs go on when the next one starts. Returns its process id."""
    pid = worker_pid(config)
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return pid


def wait_until_ended(config: Config, timeout_s: float) -> bool:
    """Wait for a worker that was asked to end."""
    deadline = time.monotonic() + timeout_s
    while worker_pid(config) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@contextlib.contextmanager
def held_lock(config: Config, tries: int) -> Generator[bool]:
    """Hold the lock for the life of a worker; False where another worker keeps it."""
    with (config.worker_folder / "lock").open("a+") as file:
        held = _try_lock(config, file.fileno(), tries)
        if held:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield held


def _try_lock(config: Config, descriptor: int, tries: int) -> bool:
    for attempt in range(tries):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Somebody only looking holds it for an instant; an older worker that was asked to end, a little longer.
            found = ready(config)
            if attempt == tries - 1 or (found is not None and not _is_older(found)):
                return False
            time.sleep(0.1)
        else:
            return True
    return False


def main() -> int:
    """Be the worker, unless another one is."""
    log.configure()
    os.umask(0o077)
    config = load()
    config.make_folders()
    with held_lock(config, LOCK_TRIES) as held:
        if not held:
            logger.info("Another worker lives")
            return 0
        from mcp_server.worker import serve

        return serve(config, lambda: _write_ready(config))


def _write_ready(config: Config) -> None:
    found = Ready(pid=os.getpid(), version=VERSION, schema_version=SCHEMA_VERSION, started_at=utc_now())
    path = config.worker_folder / "ready"
    path.with_suffix(".part").write_text(found.model_dump_json(), encoding="utf-8")
    path.with_suffix(".part").replace(path)
    # From now on the lock tells; whoever finds this worker dead starts the next one at once.
    (config.worker_folder / "starting").unlink(missing_ok=True)


def _is_older(found: Ready) -> bool:
    return found.schema_version < SCHEMA_VERSION or _release(found.version) < _release(VERSION)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3])


def _rotate(path: Path) -> None:
    if path.exists() and path.stat().st_size > LOG_LIMIT_BYTES:
        path.replace(path.with_suffix(".1"))


if __name__ == "__main__":
    sys.exit(main())
