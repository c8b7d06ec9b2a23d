"""The border to MCP: which errors keep their words, and that slimmed schemas mean what they meant."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from mcp_server import daemon
from mcp_server.config import Config
from mcp_server.edge import Tool, in_words, slim_input, slim_output, tool
from mcp_server.rows import JobStatus, RigRow, ServedEngine, Unit
from mcp_server.server import TOOLS
from mcp_server.state import State, utc_now
from rigs.errors import RigsError, UnknownNameError
from rigs.facts import AcceleratorFacts, Border, RigFacts
from rigs.serving import Arm, Endpoint, LaunchPlan
from tests.evals.test_render import REPORTS
from tests.mcp_server.conftest import session


class Wish(Border):
    count: int = Field(ge=1)
    lengths: tuple[int, ...] = ()


def refuse() -> None:
    raise UnknownNameError("rig", "lokal", ["local"])


def misread() -> None:
    Wish.model_validate({"count": 0, "lengths": [1, "two"], "extra": "x" * 500})


def crash() -> None:
    raise KeyError("a fault of ours")


REFUSED = "Unknown rig 'lokal'. Available: local."


def made(raises: Callable[[], None], *, asynchronous: bool) -> Tool:
    @tool("Try")
    def plain() -> str:
        raises()
        return "fine"

    @tool("Try")
    async def coroutine() -> str:
        raises()
        return "fine"

    return coroutine if asynchronous else plain


async def call(made: Tool) -> Any:
    result = made.function()
    return await result if inspect.isawaitable(result) else result


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return request.param


async def test_an_expected_failure_reaches_the_client_in_its_own_words(asynchronous: bool) -> None:
    with pytest.raises(ToolError) as raised:
        await call(made(refuse, asynchronous=asynchronous))
    assert str(raised.value) == REFUSED
    assert isinstance(raised.value.__cause__, UnknownNameError)


async def test_a_value_that_is_none_is_said_by_its_name(asynchronous: bool) -> None:
    with pytest.raises(ToolError) as raised:
        await call(made(misread, asynchronous=asynchronous))
    words = str(raised.value)
    assert "count: Input should be greater than or equal to 1, got '0'" in words
    assert "lengths.1: Input should be a valid integer" in words
    assert "extra: Extra inputs are not permitted" in words
    assert "pydantic" not in words
    assert "Wish" not in words
    assert len(words) < 400, "a value is cut, however long"


async def test_a_fault_of_ours_stays_what_it_is(asynchronous: bool) -> None:
    with pytest.raises(KeyError):
        await call(made(crash, asynchronous=asynchronous))


async def test_a_tool_that_works_gives_what_it_gives(asynchronous: bool) -> None:
    assert await call(made(lambda: None, asynchronous=asynchronous)) == "fine"


def test_many_wrong_values_are_five_at_most() -> None:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(list[int]).validate_python(["x"] * 50)
    assert in_words(raised.value).count("got 'x'") == 5


def test_a_value_without_a_name_is_called_arguments() -> None:
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(int).validate_python("x")
    assert in_words(raised.value).startswith("arguments: ")
    assert in_words(RigsError("as it is")) == "as it is"


@pytest.mark.parametrize("raises", [refuse, crash])
async def test_a_client_sees_the_words_of_one_and_nothing_of_the_other(
    raises: Callable[[], None], asynchronous: bool
) -> None:
    from mcp import Client

    attempt = made(raises, asynchronous=asynchronous)
    server = MCPServer("test", log_level="CRITICAL")
    server.add_tool(attempt.function, title=attempt.title, annotations=attempt.annotations)
    async with Client(server) as client:
        result: Any = await client.call_tool(attempt.function.__name__, {})
    assert result.is_error
    if raises is refuse:
        # The frame is the SDK's.
        assert result.content[0].text == f"Error executing tool {attempt.function.__name__}: {REFUSED}"
    else:
        assert "a fault of ours" not in result.content[0].text
        assert "Traceback" not in result.content[0].text


def test_what_a_tool_may_do_is_always_said() -> None:
    @tool("Look", read_only=True)
    def look() -> None: ...

    @tool("End", destructive=True)
    def end() -> None: ...

    def hints(made: Tool) -> tuple[bool | None, ...]:
        given = made.annotations
        return given.read_only_hint, given.destructive_hint, given.idempotent_hint, given.open_world_hint

    assert hints(look) == (True, False, True, False)
    assert hints(end) == (False, True, False, False)


class Inner(BaseModel):
    title: str
    size: int | None = Field(description="How much.")


class Outer(BaseModel):
    """A model that has all that a schema may hold."""

    title: Annotated[str, Field(description="A field that is called so.")]
    kind: Literal["a", "b"] | None = None
    inner: Inner | None = None
    several: list[Inner | None] = []
    either: int | str | None = None
    limited: Annotated[int, Field(ge=1, le=9)] | None = None
    named: dict[str, float | None] = {}


RIGHT: list[dict[str, Any]] = [
    {"title": "t"},
    {"title": "t", "kind": "a", "inner": {"title": "x", "size": None}, "several": [None, {"title": "y", "size": 3}]},
    {"title": "t", "inner": None, "either": None, "limited": None, "named": {"a": None, "b": 1.5}},
    {"title": "t", "either": "words", "limited": 9},
]
WRONG: list[dict[str, Any]] = [
    {},
    {"title": None},
    {"title": "t", "kind": "c"},
    {"title": "t", "inner": {"title": "x"}},
    {"title": "t", "inner": {"title": None, "size": 1}},
    {"title": "t", "several": [{"title": "y", "size": "three"}]},
    {"title": "t", "either": 1.5},
    {"title": "t", "limited": 10},
    {"title": "t", "limited": "9"},
    {"title": "t", "named": {"a": "fast"}},
]


@pytest.mark.parametrize("slim", [slim_input, slim_output])
@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_a_slimmed_schema_takes_and_refuses_the_same(slim: Callable[[Any], Any], mode: Any) -> None:
    full = Outer.model_json_schema(mode=mode)
    if mode == "serialization":
        full["required"] = ["title"]
    slimmed = slim(full)
    jsonschema.Draft202012Validator.check_schema(slimmed)
    for value in RIGHT:
        jsonschema.validate(value, full)
        jsonschema.validate(value, slimmed)
    for value in WRONG:
        for schema in (full, slimmed):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(value, schema)


def test_a_choice_of_words_that_may_be_null_may_still_be_null() -> None:
    jsonschema.validate({"title": "t", "kind": None}, slim_output(Outer.model_json_schema()))


@pytest.mark.parametrize("slim", [slim_input, slim_output])
def test_titles_go_and_a_field_of_that_name_stays_with_its_description(slim: Callable[[Any], Any]) -> None:
    full = Outer.model_json_schema()
    before = json.dumps(full)
    slimmed = slim(full)
    assert json.dumps(full) == before, "the schema that was given is as it was"
    assert slimmed["properties"]["title"] == {"type": "string", "description": "A field that is called so."}
    assert slimmed["$defs"]["Inner"]["properties"].keys() == {"title", "size"}
    assert titles(slimmed) == []
    assert titles(full) != []
    assert len(json.dumps(slimmed)) < 0.9 * len(before)


def titles(node: Any) -> list[str]:
    if isinstance(node, list):
        return [title for item in node for title in titles(item)]
    if not isinstance(node, dict):
        return []
    own = [node["title"]] if isinstance(node.get("title"), str) else []
    return own + [title for item in node.values() for title in titles(item)]


def test_inputs_keep_the_long_form_of_what_may_be_null_and_their_defaults() -> None:
    properties = slim_input(Outer.model_json_schema())["properties"]
    assert properties["limited"]["anyOf"][1] == {"type": "null"}
    assert properties["kind"]["default"] is None
    short = slim_output(Outer.model_json_schema())["properties"]["limited"]
    assert short == {"type": ["integer", "null"], "minimum": 1, "maximum": 9}


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "start_worker", lambda _: None)


@pytest.fixture
def furnished(config: Config, no_worker: None) -> Iterator[State]:
    """A state with something of everything in it, known and unknown."""
    now = utc_now()
    state = State(config.database)
    facts = RigFacts(
        os="Linux",
        machine="x86_64",
        cpu_count=2,
        accelerators=(AcceleratorFacts(name="NVIDIA L4"), AcceleratorFacts(name="x")),
    )
    served = ServedEngine(
        arm=Arm(rig="local", engine="llamacpp"),
        endpoint=Endpoint(base_url="http://127.0.0.1:1", model="tiny"),
        plan=LaunchPlan(argv=("true",), port=1),
        job_folder="/nowhere/serve-1-engine",
        started_at=now,
    )
    for name, engine in (("local", served), ("bare", None)):
        state.put_rig(
            RigRow(
                name=name,
                kind="local",
                rig_home="/nowhere",
                python=None,
                facts=facts if engine else RigFacts(),
                served=engine,
                attached_at=now,
                used_at=now,
            )
        )
    failed = state.add_job("build", "local", {"engine": "llamacpp"})
    state.finish_job(failed, JobStatus.FAILED, error="in words")
    for number, report in enumerate(REPORTS.values()):
        folder = config.runs / str(number)
        folder.mkdir()
        (folder / "report.json").write_text(report.model_dump_json())
        state.put_unit(
            Unit(
                unit_id=f"unit-{number}",
                job_id=f"unit-{number}",
                kind=report.kind,
                rig="local",
                folder=str(folder),
                status=report.status,
                headline="",
                created_at=now,
            )
        )
    yield state
    state.close()


async def test_what_the_tools_give_fits_the_schemas_that_clients_see(config: Config, furnished: State) -> None:
    seen: set[str] = set()
    async with session(config) as s:
        schemas = {item.name: item.output_schema for item in (await s.client.list_tools()).tools}

        async def fits(name: str, /, **arguments: Any) -> dict[str, Any]:
            result = await s.call(name, **arguments)
            jsonschema.Draft202012Validator(schemas[name] or False).validate(result)
            seen.add(name)
            return result

        await fits("list_rigs")
        await fits("list_engines")
        await fits("list_engines", rig="local")
        await fits("list_checkpoints")
        await fits("list_jobs")
        job = await fits("run_speed", rig="local")
        await fits("run_sweep", rig="local", concurrency=[1], shapes=["8/8"])
        await fits("run_eval", rig="local", dataset="gsm8k")
        await fits("list_jobs", rig="local")
        await fits("wait_for_job", job_id=job["job_id"], timeout_s=0.1)
        await fits("read_job_log", job_id=job["job_id"])
        await fits("cancel_job", job_id=job["job_id"])
        for line in (await fits("list_reports"))["reports"]:
            await fits("get_report", report_id=line["report_id"], all_cells=True)
        await fits("stop_engine", rig="local")
        await fits("probe_rig", rig="local")
        await fits("detach_rig", rig="bare")
        await fits("attach_rig", name="local")
    # Those need a worker, and give a job view as others do.
    assert {item.function.__name__ for item in TOOLS} - seen == {"build_engine", "serve_engine", "render_report"}
