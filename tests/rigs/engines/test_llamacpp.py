"""llama.cpp: its launch lines word by word, what it cannot do where, and what its logs and counters mean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_server.workflows.engine import explain, why_it_ended
from rigs.engines.base import EngineMetrics
from rigs.engines.llamacpp import WHEEL_VERSION, Plugin
from rigs.errors import UnsupportedFeatureError
from rigs.facts import AcceleratorFacts, PythonFacts, RigFacts
from rigs.serving import Drafter, LaunchPlan, ModelFile, ServeSpec

HOME = "/home/me/.rigbench"
PLACE = f"{HOME}/engines/llamacpp-b11549-wheel"
FACTS = RigFacts(
    os="Linux",
    machine="x86_64",
    libc="glibc 2.36",
    cpu_count=8,
    cpu_flags=("avx2", "fma", "f16c", "bmi2"),
    python=PythonFacts(path="/usr/bin/python3.11", version="3.11.2"),
)
MODEL = ModelFile(name="tiny", path="/models/tiny.gguf", sha256="0" * 64, size_bytes=1, source="a path")
HEAD = MODEL.model_copy(update={"name": "head", "path": "/models/head.gguf"})
SPEC = ServeSpec(engine="llamacpp", model=MODEL, context_tokens=2048, parallel=4, port=8123, alias="tiny")
PLAIN = [
    *(f"{PLACE}/venv/bin/python", f"{PLACE}/server.py"),
    *("--model", "/models/tiny.gguf", "--alias", "tiny", "--host", "127.0.0.1", "--port", "8123"),
    *("--ctx-size", "8192", "--parallel", "4", "--threads", "8"),
]
NGRAM = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "5"]
DRAFT = ["--spec-type", "draft-simple", "--model-draft", "/models/head.gguf", "--spec-draft-n-max", "5"]
MTP = ["--spec-type", "draft-mtp", "--model-draft", "/models/head.gguf", "--spec-draft-n-max", "5"]
MTP_OF_THE_MODEL = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "5"]


def changed(**fields: object) -> ServeSpec:
    return SPEC.model_copy(update=fields)


def launch(spec: ServeSpec = SPEC, facts: RigFacts = FACTS) -> LaunchPlan:
    engine = Plugin.build()
    engine.check(spec, facts)
    return engine.plan_serve(spec, facts, HOME)


def recorded(name: str) -> str:
    return (Path(__file__).parent / f"recorded_llamacpp_{name}.txt").read_text()


@pytest.mark.parametrize(
    ("drafter", "words"),
    [
        (None, []),
        (Drafter(method="ngram", draft_tokens=5), NGRAM),
        (Drafter(method="draft", model=HEAD, draft_tokens=5), DRAFT),
        (Drafter(method="mtp", model=HEAD, draft_tokens=5), MTP),
        (Drafter(method="mtp", draft_tokens=5), MTP_OF_THE_MODEL),
    ],
    ids=["plain", "ngram", "draft", "mtp", "mtp in the model"],
)
def test_the_launch_line_word_by_word(drafter: Drafter | None, words: list[str]) -> None:
    assert list(launch(changed(drafter=drafter)).argv) == [*PLAIN, *words]


def test_threads_are_those_asked_for_else_the_rigs_cores_else_left_to_the_server() -> None:
    assert launch(changed(threads=3)).argv[-2:] == ("--threads", "3")
    assert "--threads" not in launch(facts=FACTS.model_copy(update={"cpu_count": None})).argv


def test_the_server_is_written_at_its_start_and_knows_each_flag_of_the_launch_line() -> None:
    script = launch().files[f"{PLACE}/server.py"]
    flags = {word for word in [*PLAIN, *NGRAM, *DRAFT, *MTP] if word.startswith("--")}
    assert {flag for flag in flags if f'"{flag}"' not in script} == set()


def test_the_build_installs_the_pinned_wheel_by_its_hash_and_nothing_else() -> None:
    plan = Plugin.build().plan_build(FACTS, HOME)
    (requirements,) = plan.files.values()
    assert list(plan.files) == [f"{PLACE}/requirements.txt"]
    assert requirements.startswith(f"xllamacpp=={WHEEL_VERSION} ")
    assert re.findall(r"^\s*--hash=sha256:[0-9a-f]{64}( \\)?$", requirements, re.MULTILINE)
    make, install = plan.steps
    assert make.argv == ("/usr/bin/python3.11", "-m", "venv", "--clear", f"{PLACE}/venv")
    assert install.argv[:4] == (f"{PLACE}/venv/bin/python", "-m", "pip", "install")
    assert {"--require-hashes", "--only-binary"} <= set(install.argv)
    assert install.argv[-2:] == ("-r", f"{PLACE}/requirements.txt")
    assert (plan.engine, plan.version, plan.key) == ("llamacpp", "b11549", "llamacpp-b11549-wheel")
    assert plan.version_argv[0] == f"{PLACE}/venv/bin/python"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, []),
        ({"libc": "musl 1.2.4"}, ["musl"]),
        ({"python": None}, ["no Python >= 3.11"]),
        ({"cpu_flags": ("avx2", "f16c")}, ["the CPU lacks fma, bmi2"]),
        ({"cpu_flags": ()}, []),
        ({"os": "Darwin", "machine": "x86_64", "libc": None}, ["Apple silicon"]),
        ({"os": "Darwin", "machine": "arm64", "libc": None, "cpu_flags": ()}, []),
        ({"machine": "riscv64", "cpu_flags": ()}, ["no wheel for riscv64"]),
        ({"machine": "aarch64", "cpu_flags": ("asimd",)}, []),
        ({"libc": "musl 1.2.4", "python": None, "cpu_flags": ("sse2",)}, ["Python", "musl", "avx2, fma, f16c, bmi2"]),
    ],
)
def test_what_stands_against_it_on_a_rig(fields: dict[str, object], words: list[str]) -> None:
    facts = FACTS.model_copy(update=fields)
    reasons = Plugin.build().reasons(facts)
    assert len(reasons) == len(words)
    for word, reason in zip(words, reasons, strict=True):
        assert word in reason
    if words:
        with pytest.raises(UnsupportedFeatureError, match="llama.cpp cannot serve this"):
            launch(facts=facts)


def test_a_gpu_that_stays_idle_is_said_and_the_plan_names_the_cpu() -> None:
    facts = FACTS.model_copy(update={"accelerators": (AcceleratorFacts(name="NVIDIA L4"),)})
    (note,) = Plugin.build().notes(facts)
    assert "CPU build" in note
    assert "NVIDIA L4 stays idle" in note
    assert launch(facts=facts).runs_on == "cpu"
    assert Plugin.build().notes(FACTS) == []


def test_its_counters_are_read_from_a_real_exposition() -> None:
    assert Plugin.build().parse_metrics(recorded("metrics")) == EngineMetrics(
        prompt_tokens=27,
        cached_prompt_tokens=25,
        output_tokens=80,
        drafted_tokens=62,
        accepted_tokens=62,
        requests_running=0,
        requests_waiting=0,
    )


def test_counters_that_are_not_there_are_unknown_and_not_0() -> None:
    page = 'llamacpp:tokens_predicted_total{model="x"} 1.5e+3\nllamacpp:requests_deferred nan\n'
    metrics = Plugin.build().parse_metrics(page)
    assert metrics == EngineMetrics(output_tokens=1500)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        (f"{WHEEL_VERSION}\n", "b11549"),
        ("2027.1.12000.post1", "b12000"),
        ("0.3.1\nand a warning\n", "0.3.1 and a warning"),
        ("\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_build_number_is_read_from_the_wheels_version(output: str, version: str) -> None:
    assert Plugin.build().parse_version(output) == version


FAILURES = {
    "port_taken": "the port is in use",
    "not_gguf": "the model file is no GGUF file",
    "truncated": "the model file is truncated or damaged",
    "missing_file": "the model file cannot be opened",
    "unknown_architecture": "this llama.cpp does not know the model's architecture",
    "no_memory": "not enough memory for model and cache",
    "drafter_not_gguf": "the drafter cannot be loaded",
    "drafter_vocabulary": "the drafter's vocabulary is not the model's",
    "no_mtp_layers": "there are no MTP layers, neither in the model nor in a drafter",
}
"""Recorded with the pinned wheel and the tests' tiny model; paths renamed."""


@pytest.mark.parametrize(("name", "meaning"), FAILURES.items(), ids=FAILURES)
def test_the_log_of_a_failure_is_given_its_most_specific_meaning_first(name: str, meaning: str) -> None:
    plan = launch()
    found = explain(recorded(name), plan.failure_lines)
    assert found[0].startswith(f"{meaning} (")
    assert why_it_ended(recorded(name), plan).startswith(meaning)


def test_every_recorded_failure_is_looked_at() -> None:
    here = {path.stem.removeprefix("recorded_llamacpp_") for path in Path(__file__).parent.glob("recorded_llamacpp_*")}
    assert here == {*FAILURES, "metrics", "capped_context"}


def test_the_log_of_a_server_that_started_holds_no_failure() -> None:
    assert explain(recorded("capped_context"), launch().failure_lines) == []


@pytest.mark.parametrize(
    ("context_tokens", "parallel", "warned"),
    [(65536, 1, True), (8193, 8, True), (8192, 8, False), (16, 1024, False)],
    ids=["one slot", "just beyond", "just within", "many small slots"],
)
def test_a_context_is_called_capped_only_where_one_request_may_want_more_than_the_model_was_trained_for(
    context_tokens: int, parallel: int, warned: bool
) -> None:
    # The recorded line is about all slots together: 65536 in a model trained for 8192.
    plan = launch(changed(context_tokens=context_tokens, parallel=parallel))
    assert [words.partition(":")[0] for words in explain(recorded("capped_context"), plan.warning_lines)] == (
        ["the context asked for is longer than the model was trained for"] if warned else []
    )


@given(context_tokens=st.integers(16, 1_048_576), trained=st.integers(1, 2_000_000))
@example(context_tokens=8192, trained=8191)
@example(context_tokens=8000, trained=7999)
@example(context_tokens=1_000_000, trained=999_999)
def test_the_warning_compares_whole_numbers(context_tokens: int, trained: int) -> None:
    line = f"the slot context (99) exceeds the training context of the model ({trained}) - capping"
    warned = explain(line, launch(changed(context_tokens=context_tokens)).warning_lines) != []
    assert warned == (trained < context_tokens)
