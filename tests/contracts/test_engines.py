"""What every engine must do; the cases run over each module found in its folder.

The engine's own test file says in FACTS on which rig it runs.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.engines.base import Engine, EngineMetrics
from rigs.errors import UnsupportedFeatureError
from rigs.facts import AcceleratorFacts, PythonFacts, RigFacts
from rigs.plugins import engine_names, load_engine
from rigs.serving import BuildPlan, Drafter, DraftMethod, LaunchPlan, ModelFile, RequestFields, ServeSpec, Step

TESTS = Path(__file__).parents[1]
HOME = "/home/some one/.rigbench"
ABSURD = {
    "nothing known": RigFacts(),
    "empty words": RigFacts(os="", machine="", libc="", cpu_model="", nvidia_driver="", cuda_driver=""),
    "strange words": RigFacts(
        os="Plan 9", machine="🤖", libc="???", nvidia_driver="N/A", cuda_driver="[Not Supported]"
    ),
    "impossible numbers": RigFacts(cpu_count=-1, memory_mib=0, memory_available_mib=-5, disk_free_mib=0),
    "an accelerator without facts": RigFacts(accelerators=(AcceleratorFacts(name=""),)),
    "a python that is no version": RigFacts(python=PythonFacts(path="", version="three")),
}


@pytest.fixture(params=engine_names())
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def engine(name: str) -> Engine:
    return load_engine(name)


@pytest.fixture
def facts(name: str) -> RigFacts:
    found: RigFacts = importlib.import_module(f"tests.rigs.engines.test_{name}").FACTS
    return found


def model(name: str = "model-a", **fields: object) -> ModelFile:
    base = ModelFile(name=name, path=f"/models/{name}", sha256="a" * 64, size_bytes=1000, source="a path")
    return base.model_copy(update=fields)


def spec_for(engine: Engine) -> ServeSpec:
    return ServeSpec(
        engine=engine.name, model=model(), context_tokens=3072, parallel=3, port=18181, alias="the-alias", threads=2
    )


def drafter(method: DraftMethod, draft_tokens: int = 5) -> Drafter:
    return Drafter(method=method, model=None if method == "ngram" else model("drafter-a"), draft_tokens=draft_tokens)


def planned(engine: Engine, spec: ServeSpec, facts: RigFacts) -> LaunchPlan | None:
    """The plan, or None where the engine refuses the spec in words."""
    try:
        engine.check(spec, facts)
    except UnsupportedFeatureError:
        return None
    return engine.plan_serve(spec, facts, HOME)


def must_plan(engine: Engine, spec: ServeSpec, facts: RigFacts) -> LaunchPlan:
    plan = planned(engine, spec, facts)
    assert plan is not None
    return plan


def without_tests(names: list[str], tests: Path) -> list[str]:
    """Engines that have no test file of their own."""
    return [name for name in names if not (tests / f"rigs/engines/test_{name}.py").is_file()]


def dropped(engine: Engine, spec: ServeSpec, variants: dict[str, ServeSpec], facts: RigFacts) -> list[str]:
    """Changes of a spec that the engine neither follows nor refuses."""
    plan = must_plan(engine, spec, facts)
    return [change for change, variant in variants.items() if planned(engine, variant, facts) == plan]


def test_there_are_engines() -> None:
    assert "llamacpp" in engine_names()
    assert not {"base", "__init__"} & set(engine_names())


def test_every_engine_has_a_test_file() -> None:
    assert without_tests(engine_names(), TESTS) == []


def test_an_engine_without_a_test_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "rigs/engines").mkdir(parents=True)
    (tmp_path / "rigs/engines/test_tested.py").write_text("")
    assert without_tests(["planted", "tested"], tmp_path) == ["planted"]


def test_it_says_what_it_is(name: str, engine: Engine) -> None:
    assert engine.name == name
    assert engine.title.strip()
    assert engine.version.strip()
    assert engine.formats
    assert engine.draft_methods <= set(get_args(DraftMethod))
    assert engine.ready_path.startswith("/")


def test_equal_wishes_give_equal_plans(name: str, engine: Engine, facts: RigFacts) -> None:
    other = load_engine(name)
    assert engine.plan_build(facts, HOME) == other.plan_build(facts, HOME)
    specs = [spec_for(engine)] + [
        spec_for(engine).model_copy(update={"drafter": drafter(method)}) for method in sorted(engine.draft_methods)
    ]
    for spec in specs:
        before = spec.model_dump_json(), facts.model_dump_json()
        assert must_plan(engine, spec, facts) == must_plan(other, spec, facts)
        assert (spec.model_dump_json(), facts.model_dump_json()) == before


def test_plans_travel_as_json(engine: Engine, facts: RigFacts) -> None:
    build = engine.plan_build(facts, HOME)
    assert BuildPlan.model_validate_json(build.model_dump_json()) == build
    launch = must_plan(engine, spec_for(engine), facts)
    assert LaunchPlan.model_validate_json(launch.model_dump_json()) == launch


def test_the_build_is_a_list_of_commands_below_the_rigs_home(engine: Engine, facts: RigFacts) -> None:
    plan = engine.plan_build(facts, HOME)
    assert (plan.engine, plan.version) == (engine.name, engine.version)
    assert re.fullmatch(r"[A-Za-z0-9._+-]+", plan.key), "it names a folder"
    assert engine.name in plan.key
    assert plan.steps
    assert [step.name for step in plan.steps] == list(dict.fromkeys(step.name for step in plan.steps))
    for argv in [plan.version_argv, *(step.argv for step in plan.steps)]:
        assert one_line_words(argv)
    assert all(path.startswith(f"{HOME}/engines/{plan.key}/") for path in plan.files)
    assert engine.plan_build(facts, "/elsewhere") != plan


def test_the_launch_is_one_command_that_names_what_was_asked(engine: Engine, facts: RigFacts) -> None:
    spec = spec_for(engine).model_copy(update={"extra_args": ("--last-word", "of a kind")})
    plan = must_plan(engine, spec, facts)
    assert one_line_words(plan.argv)
    assert plan.port == spec.port
    words = [part for word in plan.argv for part in (word, *word.split("="))]
    for wanted in (spec.model.path, spec.alias, str(spec.port), str(spec.parallel)):
        assert wanted in words
    # The room of one request, or of all at once where they share it.
    assert {str(spec.context_tokens), str(spec.context_tokens * spec.parallel)} & set(words)
    assert plan.argv[-2:] == spec.extra_args
    assert plan.ready_timeout_s > 0
    assert plan.runs_on
    assert all(path.startswith(f"{HOME}/") for path in plan.files)
    assert all(isinstance(value, str) and "\n" not in value for value in plan.env.values())


def one_line_words(argv: tuple[str, ...]) -> bool:
    return bool(argv) and all(isinstance(word, str) and word and "\n" not in word for word in argv)


CHANGES: dict[str, object] = {
    "engine": "another-engine",
    "model": model("model-b"),
    "drafter": "each drafter, below",
    "context_tokens": 3073,
    "parallel": 4,
    "port": 18182,
    "alias": "another-alias",
    "threads": 3,
    "extra_args": ("--another",),
}


def test_every_field_of_a_spec_is_changed_by_the_test_below() -> None:
    assert set(CHANGES) == set(ServeSpec.model_fields)


def test_every_field_of_a_spec_reaches_the_plan_or_is_refused(engine: Engine, facts: RigFacts) -> None:
    spec = spec_for(engine)
    variants = {field: spec.model_copy(update={field: value}) for field, value in CHANGES.items() if field != "drafter"}
    for method in get_args(DraftMethod):
        variants[f"drafter {method}"] = spec.model_copy(update={"drafter": drafter(method)})
    assert dropped(engine, spec, variants, facts) == []


def test_every_field_of_a_drafter_reaches_the_plan_or_is_refused(engine: Engine, facts: RigFacts) -> None:
    for method in sorted(engine.draft_methods):
        chosen = drafter(method)
        spec = spec_for(engine).model_copy(update={"drafter": chosen})
        changes: dict[str, dict[str, object]] = {
            "method": {"method": next(other for other in get_args(DraftMethod) if other != method)},
            "draft_tokens": {"draft_tokens": 6},
            "model": {"model": model("drafter-b")},
            "no model": {"model": None if chosen.model else model("drafter-b")},
        }
        variants = {
            f"{method}: {change}": spec.model_copy(update={"drafter": chosen.model_copy(update=update)})
            for change, update in changes.items()
        }
        assert dropped(engine, spec, variants, facts) == []


class Forgetful(Engine):
    """It plans the same whatever is wanted."""

    name = "forgetful"
    title = "Forgetful"
    version = "1"
    formats = frozenset({"gguf"})
    draft_methods = frozenset[DraftMethod]({"ngram"})

    def plan_build(self, facts: RigFacts, rig_home: str) -> BuildPlan:
        step = Step(name="build", argv=("true",))
        return BuildPlan(engine=self.name, version="1", key="forgetful-1", steps=(step,), version_argv=("true",))

    def plan_serve(self, spec: ServeSpec, facts: RigFacts, rig_home: str) -> LaunchPlan:
        return LaunchPlan(argv=("serve", spec.model.path), port=spec.port)

    def parse_version(self, output: str) -> str:
        return output


def test_a_field_that_an_engine_drops_is_found() -> None:
    spec = spec_for(Forgetful())
    variants = {field: spec.model_copy(update={field: value}) for field, value in CHANGES.items() if field != "drafter"}
    variants["drafter"] = spec.model_copy(update={"drafter": drafter("ngram")})
    assert dropped(Forgetful(), spec, variants, RigFacts()) == [
        *("context_tokens", "parallel", "alias", "threads", "extra_args", "drafter")
    ]


def test_a_drafter_of_an_unknown_kind_is_refused_with_the_known_ones(engine: Engine, facts: RigFacts) -> None:
    unknown = drafter("ngram").model_copy(update={"method": "tea-leaves"})
    with pytest.raises(UnsupportedFeatureError, match="'tea-leaves'") as refused:
        engine.check(spec_for(engine).model_copy(update={"drafter": unknown}), facts)
    for method in engine.draft_methods or ["none"]:
        assert method in str(refused.value)


def test_a_drafter_that_lacks_its_model_is_refused(engine: Engine, facts: RigFacts) -> None:
    lacking = Drafter(method="draft", draft_tokens=2)
    with pytest.raises(UnsupportedFeatureError, match="'draft'"):
        engine.check(spec_for(engine).model_copy(update={"drafter": lacking}), facts)


def test_every_reason_is_told_at_once(engine: Engine) -> None:
    facts = RigFacts(os="Plan 9", machine="vax", libc="musl 1.0")
    unknown = drafter("ngram").model_copy(update={"method": "tea-leaves"})
    with pytest.raises(UnsupportedFeatureError) as refused:
        engine.check(spec_for(engine).model_copy(update={"drafter": unknown}), facts)
    for reason in [*engine.reasons(facts), "tea-leaves"]:
        assert reason in str(refused.value)


def test_the_meanings_of_log_lines_are_regular_expressions_with_words(engine: Engine, facts: RigFacts) -> None:
    plan = must_plan(engine, spec_for(engine), facts)
    for pattern, meaning in [*plan.failure_lines.items(), *plan.warning_lines.items()]:
        assert re.compile(pattern).search("") is None, "it would match any line"
        assert meaning.strip()
        assert not meaning.endswith("."), "it stands within a sentence"


@pytest.mark.parametrize("facts", ABSURD.values(), ids=ABSURD)
def test_an_unlikely_rig_gets_an_answer_in_words(engine: Engine, facts: RigFacts) -> None:
    for words in (engine.reasons(facts), engine.notes(facts)):
        assert isinstance(words, list)
        assert all(isinstance(word, str) and word.strip() and not word.endswith(".") for word in words)


def test_a_rig_it_runs_on_has_nothing_against_it(engine: Engine, facts: RigFacts) -> None:
    assert engine.reasons(facts) == []


# Counters as an engine might print them, well-formed or not.
lines = st.builds(
    "{}:{}{} {}".format,
    st.sampled_from(["llamacpp", "vllm", "sglang", ""]),
    st.sampled_from(["prompt_tokens_total", "tokens_predicted_total", "requests_processing", "x"]),
    st.sampled_from(["", "{}", '{model="a b"}', "{"]),
    st.one_of(
        st.text(max_size=12), st.floats().map(str), st.sampled_from(["1e999", "--1", "e", ".", "+", "NaN", "9" * 40])
    ),
)


@pytest.mark.parametrize("name", engine_names())
@given(page=st.one_of(st.text(), st.lists(lines).map("\n".join)))
def test_any_page_of_metrics_is_read_without_an_error(name: str, page: str) -> None:
    assert isinstance(load_engine(name).parse_metrics(page), EngineMetrics)


@pytest.mark.parametrize("name", engine_names())
@given(output=st.text())
def test_any_output_gives_a_version_of_one_line(name: str, output: str) -> None:
    version = load_engine(name).parse_version(output)
    assert version
    assert len(version) <= 80
    assert len(version.splitlines()) == 1


def test_request_fields_survive_the_way_to_the_rig(engine: Engine) -> None:
    fields = engine.request_fields()
    assert RequestFields.model_validate(json.loads(json.dumps(fields.model_dump(mode="json")))) == fields
    assert fields.stream_options.get("include_usage") is True, "tokens are counted by the server's usage"
    assert not {"model", "messages", "prompt", "stream", "max_tokens"} & (set(fields.body) | set(fields.exact_length))
