"""Tools that answer from the state alone: no worker, no rig."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server import daemon
from mcp_server.config import Config
from mcp_server.rows import RigRow, ServedEngine, utc_now
from mcp_server.server import TOOLS, create_server
from mcp_server.state import State
from rigs.facts import PythonFacts, RigFacts
from rigs.serving import Arm, Endpoint, LaunchPlan
from tests.mcp_server.conftest import session

FACTS = RigFacts(
    os="Linux",
    machine="x86_64",
    libc="glibc 2.36",
    cpu_count=2,
    cpu_flags=("avx2", "fma", "f16c", "bmi2"),
    python=PythonFacts(path="/usr/bin/python3", version="3.11.2"),
)


@pytest.fixture(autouse=True)
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs stay queued: these tests are about what is refused and what is written."""
    monkeypatch.setattr(daemon, "start_worker", lambda _: None)


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def rig(config: Config) -> str:
    put_rig(config, FACTS)
    return "local"


def put_rig(config: Config, facts: RigFacts, *, served: bool = False) -> None:
    now = utc_now()
    engine = ServedEngine(
        arm=Arm(rig="local", engine="llamacpp"),
        endpoint=Endpoint(base_url="http://127.0.0.1:1", model="tiny"),
        plan=LaunchPlan(argv=("true",), port=1),
        job_folder="/nowhere/serve-1-engine",
        started_at=now,
    )
    state = State(config.database)
    state.put_rig(
        RigRow(
            name="local",
            kind="local",
            rig_home="/nowhere",
            python=None,
            facts=facts,
            served=engine if served else None,
            attached_at=now,
            used_at=now,
        )
    )
    state.close()


async def test_every_tool_is_described_and_says_what_it_may_do(config: Config, mode: Any) -> None:
    async with session(config, mode) as s:
        tools = (await s.client.list_tools()).tools
    assert [tool.name for tool in tools] == [tool.function.__name__ for tool in TOOLS]
    assert {tool.name for tool in tools} == {
        *("list_rigs", "attach_rig", "detach_rig", "probe_rig", "list_engines", "list_checkpoints", "build_engine"),
        *(
            "serve_engine",
            "stop_engine",
            "run_speed",
            "run_sweep",
            "run_eval",
            "list_jobs",
            "wait_for_job",
            "cancel_job",
        ),
        *("read_job_log", "list_reports", "get_report", "render_report"),
    }
    for tool in tools:
        assert tool.title
        assert tool.description
        assert len(tool.description) < 2048
        hints = tool.annotations
        assert hints is not None
        for hint in (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint):
            assert hint is not None, tool.name
        assert tool.output_schema, tool.name
        assert '"title"' not in str(tool.input_schema)


async def test_the_list_of_tools_stays_small(config: Config) -> None:
    async with session(config) as s:
        tools = (await s.client.list_tools()).tools
    sizes = [len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in tools]
    assert sum(sizes) / len(sizes) <= 1700


async def test_the_instructions_fit_what_clients_show(config: Config) -> None:
    assert len(create_server(config).instructions or "") < 2048


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("probe_rig", {"rig": "lokal"}, "Unknown rig 'lokal'. Available: local. attach_rig adds one."),
        ("serve_engine", {"rig": "nope"}, "Unknown rig 'nope'"),
        ("list_engines", {"rig": "nope"}, "Unknown rig 'nope'"),
        ("serve_engine", {"rig": "local", "engine": "vlm"}, "Unknown engine 'vlm'. Available: llamacpp"),
        ("serve_engine", {"rig": "local", "checkpoint": "smol"}, "Unknown checkpoint 'smol'. Available: gemma-4-e2b"),
        ("serve_engine", {"rig": "local", "checkpoint": "x/y.gguf"}, "Give an absolute path"),
        ("serve_engine", {"rig": "local", "drafter": "smol"}, "Unknown checkpoint 'smol'"),
        ("serve_engine", {"rig": "local", "draft_tokens": 4}, "draft_tokens needs a drafter"),
        ("serve_engine", {"rig": "local", "parallel": 0}, "parallel is 0"),
        ("serve_engine", {"rig": "local", "context_tokens": 100_000}, "between 16 and 8192"),
        ("serve_engine", {"rig": "local", "port": 70_000}, "port is 70000"),
        ("attach_rig", {"name": "My Rig; rm -rf /"}, "cannot be used"),
        ("attach_rig", {"name": "../../etc"}, "cannot be used"),
        ("run_speed", {"rig": "local"}, "Nothing is served on 'local'. Call serve_engine"),
        ("run_sweep", {"rig": "local"}, "Nothing is served on 'local'. Call serve_engine"),
        ("run_eval", {"rig": "local", "dataset": "gsm8k"}, "Nothing is served on 'local'. Call serve_engine"),
        ("wait_for_job", {"job_id": "speed-000000"}, "Unknown job 'speed-000000'. Available: none"),
        ("cancel_job", {"job_id": "x"}, "Unknown job 'x'"),
        ("read_job_log", {"job_id": "../../etc/passwd"}, "Unknown job '../../etc/passwd'"),
        ("get_report", {"report_id": "x"}, "Unknown report 'x'"),
        ("render_report", {"report_id": "x"}, "Unknown report 'x'"),
    ],
)
async def test_what_is_not_known_or_cannot_be_is_refused_in_words(
    config: Config, rig: str, tool: str, arguments: dict[str, Any], words: str
) -> None:
    async with session(config) as s:
        assert words in await s.error(tool, **arguments)
        assert (await s.call("list_jobs"))["jobs"] == [], "nothing half-done is left behind"


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("run_speed", {"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1, got '0'"),
        ("run_speed", {"repeats": 0}, "repeats: Input should be greater than or equal to 1"),
        ("run_speed", {"prompts": ["code", "poem"]}, "poem"),
        ("run_speed", {"prompts": []}, "at least"),
        ("run_sweep", {"concurrency": [0]}, "concurrency.0: Input should be greater than or equal to 1, got '0'"),
        ("run_sweep", {"concurrency": [10_000]}, "concurrency.0: Input should be less than or equal to 1024"),
        ("run_sweep", {"concurrency": []}, "at least"),
        ("run_sweep", {"shapes": ["big"]}, "The shape 'big' is not of the form INPUT/OUTPUT"),
        ("run_sweep", {"shapes": ["512/0"]}, "output_len: Input should be greater than or equal to 1"),
        ("run_sweep", {"concurrency": "many"}, "list"),
        ("run_eval", {"dataset": "mmlu"}, "'gsm8k' or 'bfcl_simple'"),
        ("run_eval", {"dataset": "gsm8k", "limit": 0}, "greater than or equal to 1"),
        ("run_eval", {"dataset": "gsm8k", "concurrency": 0}, "greater than or equal to 1"),
        ("run_eval", {"dataset": "gsm8k", "source": "/no/such"}, "There is no file /no/such on this machine"),
        ("run_eval", {"dataset": "gsm8k", "source": "http://127.0.0.1/x"}, "give sha256="),
        ("run_eval", {"dataset": "gsm8k", "sha256": "x"}, "sha256: String should match pattern"),
    ],
)
async def test_workloads_that_cannot_be_are_refused_in_words(
    config: Config, tool: str, arguments: dict[str, Any], words: str
) -> None:
    put_rig(config, FACTS, served=True)
    async with session(config) as s:
        assert words in await s.error(tool, rig="local", **arguments)
        assert (await s.call("list_jobs"))["jobs"] == []


async def test_a_run_may_be_queued_behind_the_serve_it_waits_for(config: Config, rig: str) -> None:
    async with session(config) as s:
        await s.call("serve_engine", rig=rig)
        job = await s.call("run_speed", rig=rig)
    assert (job["status"], job["total"]) == ("queued", 18)


async def test_engines_are_judged_for_a_rig_before_anything_is_built(config: Config) -> None:
    put_rig(config, FACTS.model_copy(update={"cpu_flags": ("avx",), "python": None, "libc": "musl 1.2.4"}))
    async with session(config) as s:
        (engine,) = (await s.call("list_engines", rig="local"))["engines"]
        assert len(engine["reasons"]) == 3
        words = await s.error("build_engine", rig="local")
    for part in ("no Python >= 3.11", "musl", "avx2, fma, f16c, bmi2"):
        assert part in words


async def test_a_cancelled_job_that_waits_ends_at_once(config: Config, rig: str) -> None:
    async with session(config) as s:
        job = await s.call("build_engine", rig=rig)
        assert (await s.call("cancel_job", job_id=job["job_id"]))["status"] == "cancelled"
        assert (await s.call("wait_for_job", job_id=job["job_id"]))["status"] == "cancelled"


async def test_waiting_returns_in_time_and_tells_what_to_do_next(config: Config, rig: str, mode: Any) -> None:
    told: list[tuple[float, str | None]] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with session(config, mode) as s:
        job = await s.call("build_engine", rig=rig)
        result = await s.client.call_tool(
            "wait_for_job", {"job_id": job["job_id"], "timeout_s": 0.6}, progress_callback=tell
        )
    assert result.structured_content is not None  # pyright: ignore[reportAttributeAccessIssue]
    assert result.structured_content["status"] == "queued"  # pyright: ignore[reportAttributeAccessIssue]
    assert result.structured_content["next_step"] == f"wait_for_job(job_id={job['job_id']!r})"  # pyright: ignore[reportAttributeAccessIssue]
    assert told[0] == (0.001, "queued")


async def test_a_log_is_read_from_an_offset_and_without_control_characters(config: Config, rig: str) -> None:
    async with session(config) as s:
        job_id = (await s.call("build_engine", rig=rig))["job_id"]
        path = config.runs / job_id / "log"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\x1b[31mred\x1b[0m\r\n" + b"x" * 10_000 + b"\xff end\n")
        end = await s.call("read_job_log", job_id=job_id, limit=10)
        start = await s.call("read_job_log", job_id=job_id, offset=0, limit=14)
        beyond = await s.call("read_job_log", job_id=job_id, offset=10**9)
    assert end["log"] == "xxxx\ufffd end\n"
    assert (start["log"], start["next_offset"]) == ("red\n", 14)
    assert beyond["log"] == ""


async def test_a_resource_that_is_not_there_is_an_error_of_the_protocol(config: Config) -> None:
    from mcp import MCPError

    async with session(config) as s:
        with pytest.raises(MCPError, match="no report.json of x"):
            await s.client.read_resource("rigbench://reports/x")
