"""What a tool works with: the configuration and the state, and the way to hand a job to the worker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver import Context

from mcp_server import daemon
from mcp_server.config import Config
from mcp_server.rows import Job
from mcp_server.state import State

QUICK_S = 0.8
"""How long a call waits for a job that is usually done at once."""
QUICK_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    config: Config
    state: State

    def submit(self, kind: str, rig: str | None, args: Mapping[str, Any], *, quick: bool = False) -> Job:
        """Queue a job and see that a worker lives; waits a moment for a quick one, never for the worker itself."""
        deadline = time.monotonic() + QUICK_S
        job_id = self.state.add_job(kind, rig, args)
        daemon.ensure_worker(self.config)
        job = self.state.job(job_id)
        while quick and not job.status.is_finished and time.monotonic() < deadline:
            time.sleep(QUICK_POLL_S)
            job = self.state.job(job_id)
        return job


def app_of(ctx: Context[App]) -> App:
    return ctx.request_context.lifespan_context
