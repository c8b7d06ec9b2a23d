"""Where things lie and which limits hold: from the environment, read once at the start of each process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from rigs.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    home: Path
    """The state directory, mode 0700."""
    rig_home: str
    """Where we work on this machine as a rig, unless `attach_rig` says otherwise."""
    wheelhouse: Path | None
    """A folder of wheels; installs on a rig then use it and no index."""
    wait_cap_s: float
    """The longest a single `wait_for_job` may take; clients give up on calls of a minute."""
    idle_stop_min: float
    """An engine without a job for this long is stopped."""
    worker_idle_min: float
    """A worker with nothing to do for this long ends itself."""

    @property
    def database(self) -> Path:
        return self.home / "state.db"

    @property
    def worker_folder(self) -> Path:
        return self.home / "worker"

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    @property
    def known_hosts(self) -> Path:
        """Host keys that a fingerprint of the user's confirmed."""
        return self.home / "keys" / "known_hosts"

    def make_folders(self) -> None:
        """Create the state directory for this user only; leaves what is there as it is.

        Raises:
            UsageError: it cannot be made or written.
        """
        try:
            for folder in (self.home, self.worker_folder, self.runs):
                folder.mkdir(parents=folder == self.home, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(
                f"The state directory {self.home} cannot be used: {error.strerror}. Set RIGBENCH_HOME to another one."
            ) from error


def load() -> Config:
    """Read the environment; every variable has a default that works.

    Raises:
        UsageError: a variable that should be a number is none.
    """
    home = os.environ.get("RIGBENCH_HOME")
    wheelhouse = os.environ.get("RIGBENCH_WHEELHOUSE")
    return Config(
        home=Path(home).expanduser().absolute() if home else Path(platformdirs.user_data_dir("rigbench")),
        rig_home=os.environ.get("RIGBENCH_RIG_HOME") or "~/.rigbench",
        wheelhouse=Path(wheelhouse).expanduser().absolute() if wheelhouse else None,
        wait_cap_s=_number("RIGBENCH_WAIT_CAP_S", 45),
        idle_stop_min=_number("RIGBENCH_IDLE_STOP_MIN", 30),
        worker_idle_min=_number("RIGBENCH_WORKER_IDLE_MIN", 60),
    )


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise UsageError(f"{variable} is {text!r}, which is no positive number. Correct or unset it.")
    return value
