"""Where things lie and which limits hold: from the environment, read once at the start of each process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs


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
        """Create the state directory for this user only; leaves what is there."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.home.chmod(0o700)
        for folder in (self.worker_folder, self.runs):
            folder.mkdir(exist_ok=True, mode=0o700)


def load() -> Config:
    """Read the environment; every variable has a default that works."""
    home = os.environ.get("RIGBENCH_HOME")
    wheelhouse = os.environ.get("RIGBENCH_WHEELHOUSE")
    return Config(
        home=Path(home).expanduser().absolute() if home else Path(platformdirs.user_data_dir("rigbench")),
        rig_home=os.environ.get("RIGBENCH_RIG_HOME") or "~/.rigbench",
        wheelhouse=Path(wheelhouse).expanduser().absolute() if wheelhouse else None,
        wait_cap_s=float(os.environ.get("RIGBENCH_WAIT_CAP_S") or 45),
        idle_stop_min=float(os.environ.get("RIGBENCH_IDLE_STOP_MIN") or 30),
        worker_idle_min=float(os.environ.get("RIGBENCH_WORKER_IDLE_MIN") or 60),
    )
