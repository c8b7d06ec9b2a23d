"""A state of its own for every test, with a real worker where the test starts one, and nothing left afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from mcp_server import daemon
from mcp_server.config import Config, load
from mcp_server.server import create_server
from tests import tiny_gguf

ROOT = Path(__file__).parents[2]
WHEELHOUSE = ROOT / ".wheelhouse"


@pytest.fixture(scope="session")
def rig_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the tests of one process, so that the rig is prepared and the engine built once."""
    return tmp_path_factory.mktemp("rig") / "home with space"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def config(tmp_path: Path, rig_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    assert (WHEELHOUSE / ".filled").exists(), "Run the tests with `make test`, which fills .wheelhouse first."
    monkeypatch.setenv("RIGBENCH_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("RIGBENCH_RIG_HOME", str(rig_home))
    monkeypatch.setenv("RIGBENCH_WHEELHOUSE", str(WHEELHOUSE))
    if rig_home.exists():  # each test is an installation of its own, and the one before is gone
        (rig_home / ".rigbench").write_text("-\n")
    config = load()
    config.make_folders()
    yield config
    end_worker(config)
    left = [pid for pid, line in processes().items() if str(tmp_path) in line]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"left running: {left}"
    # Engines and measuring processes name the rig's home, not the state.
    assert not (running := rig_processes(rig_home)), f"left on the rig: {running}"


def end_worker(config: Config) -> None:
    """End every worker of this state, also one that is only starting and holds no lock yet."""
    mark = f"RIGBENCH_HOME={config.home}\0".encode()
    for pid, line in processes().items():
        try:
            if "mcp_server.daemon" in line and mark in Path(f"/proc/{pid}/environ").read_bytes() + b"\0":
                os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    daemon.wait_until_ended(config, timeout_s=10)


def rig_processes(rig_home: Path) -> dict[int, str]:
    found = {pid: line for pid, line in processes().items() if str(rig_home) in line}
    for _ in range(50):  # a process that was just ended is listed for an instant
        if not found:
            break
        time.sleep(0.1)
        found = {pid: line for pid, line in processes().items() if str(rig_home) in line}
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def processes() -> dict[int, str]:
    """Process id -> its command line and, for the worker, the state that it works on."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, UnicodeDecodeError):
                continue
    return found


class Session:
    """A client as a program uses it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        assert not result.is_error, result.content
        assert result.structured_content is not None
        return result.structured_content

    async def error(self, tool: str, **arguments: Any) -> str:
        """The words of a call that must fail."""
        result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        assert result.is_error, result.structured_content
        (content,) = result.content
        assert isinstance(content, TextContent)
        assert "Traceback" not in content.text
        return content.text

    async def finish(self, job: dict[str, Any]) -> dict[str, Any]:
        """Wait for the end of a job, however it ends."""
        while job["status"] in ("queued", "running"):
            job = await self.call("wait_for_job", job_id=job["job_id"], timeout_s=20)
        return job

    async def do(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A job that must end well."""
        job = await self.finish(await self.call(tool, **arguments))
        assert job["status"] == "done", f"{job['error']} {job['detail']}"
        return job

    async def finish_or_error(self, tool: str, **arguments: Any) -> str:
        """The error of a quick job that must fail, whether it did so within the call or after it."""
        result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, CallToolResult)
        if result.is_error:
            return str(result.content)
        assert result.structured_content is not None
        # Some tools wrap the job in a view of their own.
        job = await self.finish(result.structured_content.get("job", result.structured_content))
        assert job["status"] == "failed", job
        return job["error"]

    async def serve(self, model: Path, **arguments: Any) -> dict[str, Any]:
        wanted = {"rig": "local", "checkpoint": str(model), "context_tokens": 512, "parallel": 4, "threads": 1}
        return await self.do("serve_engine", **{**wanted, **arguments})


@asynccontextmanager
async def session(config: Config, mode: Any = "auto") -> AsyncIterator[Session]:
    """A client and a server in this process; the worker is a real one."""
    async with Client(create_server(config), mode=mode) as client:
        yield Session(client)
