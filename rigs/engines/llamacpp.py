"""llama.cpp, from the xllamacpp wheel: its own C++ server on any CPU from 2013 on, with no compiler and no toolkit.

The wheel on PyPI is a CPU build. Its version carries the llama.cpp build (2026.10.11549 is b11549), which the server
itself reports as unknown.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import ClassVar

from rigs.engines.base import Engine, EngineMetrics
from rigs.facts import RigFacts
from rigs.serving import BuildPlan, DraftMethod, LaunchPlan, RequestFields, ServeSpec, Step, StreamKeys, ToolsProbe

WHEEL_VERSION = "2026.10.11549"
REQUIREMENTS = f"""\
xllamacpp=={WHEEL_VERSION} \\
    --hash=sha256:1b76730ab9af47ec8d05a3d55154305fa92642f694dd9ad87d9e5a5e9956a59d \\
    --hash=sha256:1f2a08052bb653659bcf1bedbbaf86b97f41dd46aa2763d596d7f27c5d89a689 \\
    --hash=sha256:4ecda27a308b2403aa13c9d04b270befab95edc556c24ed00b2f8a98bd7f6781 \\
    --hash=sha256:7a04d90562878fde09a106f9618810e67cfa07ed46b946705e0b95c9e5f33edb \\
    --hash=sha256:9993211c112a8f0ecc338b4a9a2ea40a5f12a1a10b980089eb0f684fa32f921b \\
    --hash=sha256:aef25324f172925988378cf5c14dc6ec4291b889a06aa0388332e75d69c8bd93 \\
    --hash=sha256:b9d341c07245b246d235a7186b0df8b892a3665fd92e37e1de606eaeff1d5265 \\
    --hash=sha256:c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b \\
    --hash=sha256:c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261 \\
    --hash=sha256:cd580dd0a984e0d3ad2d1f7115a064fc2383b9d7a616521819e7a37e7de2c6d2 \\
    --hash=sha256:e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e
"""
NEEDED_CPU_FLAGS = ("avx2", "fma", "f16c", "bmi2")
NGRAM_LOOKUP_TOKENS = 3
"""llama.cpp's default of 12 hardly ever matches in a reply of a few hundred tokens."""

FAILURES = {
    r"couldn't bind HTTP server socket": "the port is in use",
    r"(?i)failed to allocate|insufficient memory|out of memory|bad_alloc|cannot allocate memory": (
        "not enough memory for model and cache"
    ),
    r"(?i)illegal instruction": "the CPU lacks an instruction of this build",
    # The drafter's before the model's: what is wrong with a drafter's file is logged in the words of any model's.
    r"(?i)vocab.*(not compatible|must (closely )?match)": "the drafter's vocabulary is not the model's",
    r"failed to create MTP context": "there are no MTP layers, neither in the model nor in a drafter",
    r"failed to load draft model": "the drafter cannot be loaded",
    r"failed to initialize speculative|speculative decoding not supported": "the drafter does not work with this model",
    r"invalid magic characters": "the model file is no GGUF file",
    r"tensor '.*' data is not within the file bounds": "the model file is truncated or damaged",
    r"failed to open GGUF file": "the model file cannot be opened",
    r"unknown model architecture": "this llama.cpp does not know the model's architecture",
    r"failed to load model": "the model cannot be loaded",
    r"FATAL ": "the server gave up at its start",
}
"""The most specific first: a log of one failure matches several."""


class Plugin(Engine):
    name: ClassVar[str] = "llamacpp"
    title: ClassVar[str] = "llama.cpp"
    version: ClassVar[str] = f"b{WHEEL_VERSION.rpartition('.')[2]}"
    formats: ClassVar[frozenset[str]] = frozenset({"gguf"})
    draft_methods: ClassVar[frozenset[DraftMethod]] = frozenset({"draft", "mtp", "ngram"})

    def plan_build(self, facts: RigFacts, rig_home: str) -> BuildPlan:
        key = f"llamacpp-{self.version}-wheel"
        place = f"{rig_home}/engines/{key}"
        python = facts.python.path if facts.python else "python3"
        return BuildPlan(
            engine=self.name,
            version=self.version,
            key=key,
            files={f"{place}/requirements.txt": REQUIREMENTS},
            steps=(
                Step(name="make a virtual environment", argv=(python, "-m", "venv", "--clear", f"{place}/venv")),
                Step(
                    name=f"install xllamacpp {WHEEL_VERSION}",
                    argv=(
                        *(f"{place}/venv/bin/python", "-m", "pip", "install", "--disable-pip-version-check"),
                        *(
                            "--no-input",
                            "--require-hashes",
                            "--only-binary",
                            ":all:",
                            "-r",
                            f"{place}/requirements.txt",
                        ),
                    ),
                ),
            ),
            version_argv=(
                f"{place}/venv/bin/python",
                "-c",
                "import importlib.metadata as m, xllamacpp; print(m.version('xllamacpp'))",
            ),
        )

    def plan_serve(self, spec: ServeSpec, facts: RigFacts, rig_home: str) -> LaunchPlan:
        place = f"{rig_home}/engines/llamacpp-{self.version}-wheel"
        script = f"{place}/server.py"
        argv = [
            *(f"{place}/venv/bin/python", script),
            *("--model", spec.model.path, "--alias", spec.alias, "--host", "127.0.0.1", "--port", str(spec.port)),
            # The cache is one for all slots: room for each to be full at once.
            *("--ctx-size", str(spec.context_tokens * spec.parallel), "--parallel", str(spec.parallel)),
        ]
        if spec.threads or facts.cpu_count:
            argv += ["--threads", str(spec.threads or facts.cpu_count)]
        if drafter := spec.drafter:
            if drafter.method == "ngram":
                argv += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(NGRAM_LOOKUP_TOKENS)]
                argv += ["--spec-ngram-simple-size-m", str(drafter.draft_tokens)]
            else:
                argv += ["--spec-type", "draft-mtp" if drafter.method == "mtp" else "draft-simple"]
                argv += ["--model-draft", drafter.model.path] if drafter.model else []
                argv += ["--spec-draft-n-max", str(drafter.draft_tokens)]
        return LaunchPlan(
            argv=(*argv, *spec.extra_args),
            files={script: files("rigs.engines").joinpath("_xllamacpp_server.py").read_text(encoding="utf-8")},
            port=spec.port,
            ready_timeout_s=300.0,
            runs_on="cpu",
            failure_lines=FAILURES,
            warning_lines={
                rf"exceeds the training context of the model \({_below(spec.context_tokens)}\)": (
                    "the context asked for is longer than the model was trained for: capped"
                )
            },
        )

    def request_fields(self) -> RequestFields:
        return RequestFields(
            body={"cache_prompt": False},
            exact_length={"ignore_eos": True},
            tokenize_path="/tokenize",
            stream_keys=StreamKeys(
                drafted="timings.draft_n",
                accepted="timings.draft_n_accepted",
                server_prefill_ms="timings.prompt_ms",
                server_decode_ms="timings.predicted_ms",
            ),
            tools_probe=ToolsProbe(path="/props", key="chat_template_caps.supports_tools"),
        )

    def parse_version(self, output: str) -> str:
        match = re.search(r"\b\d{4}\.\d+\.(\d+)\b", output)
        return f"b{match[1]}" if match else " ".join(output.split())[:80] or "unknown"

    def parse_metrics(self, exposition: str) -> EngineMetrics:
        number = r"[0-9]{1,40}(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?"
        counters = dict(re.findall(rf"^llamacpp:(\w+)(?:\{{[^}}]*\}})? ({number})$", exposition, re.MULTILINE))

        def count(name: str) -> int | None:
            return int(float(counters[name])) if name in counters else None

        return EngineMetrics(
            prompt_tokens=count("prompt_tokens_total"),
            cached_prompt_tokens=count("prompt_tokens_cached_total"),
            output_tokens=count("tokens_predicted_total"),
            drafted_tokens=count("spec_decode_num_draft_tokens_total"),
            accepted_tokens=count("spec_decode_num_accepted_tokens_total"),
            requests_running=count("requests_processing"),
            requests_waiting=count("requests_deferred"),
        )

    def reasons(self, facts: RigFacts) -> list[str]:
        found: list[str] = []
        if facts.python is None:
            found.append("there is no Python >= 3.11 on the rig: install python3.11 or newer with its venv module")
        if facts.libc and facts.libc.startswith("musl"):
            found.append("its wheel needs glibc, and this rig has musl")
        if facts.os == "Linux" and facts.machine not in ("x86_64", "aarch64", None):
            found.append(f"it has no wheel for {facts.machine}")
        if facts.os == "Darwin" and facts.machine not in ("arm64", None):
            found.append("its wheel for macOS needs Apple silicon")
        if facts.machine == "x86_64" and facts.cpu_flags:
            missing = [flag for flag in NEEDED_CPU_FLAGS if flag not in facts.cpu_flags]
            if missing:
                found.append(f"the CPU lacks {', '.join(missing)}")
        return found

    def notes(self, facts: RigFacts) -> list[str]:
        if facts.accelerators:
            names = ", ".join(accelerator.name for accelerator in facts.accelerators)
            return [f"the wheel is a CPU build: {names} stays idle, and the report names the CPU"]
        return []


def _below(limit: int) -> str:
    """Match the whole numbers below a limit.

    The line compares the training context with the room of all slots together, which is no news: only a training
    context below what one request may have is.
    """
    digits = str(limit)
    shorter = [rf"\d{{1,{len(digits) - 1}}}"] if len(digits) > 1 else []
    smaller = [
        rf"{digits[:place]}[0-{int(digit) - 1}]\d{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits)
        if digit != "0"
    ]
    return f"(?:{'|'.join(shorter + smaller)})"
