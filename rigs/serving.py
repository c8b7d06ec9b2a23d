"""From what is wanted to what answers: serve spec -> launch plan -> endpoint.

These values cross borders (they are stored, and travel to the rig as JSON), so they are strict and frozen.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from rigs.facts import Border

DraftMethod = Literal["draft", "mtp", "ngram"]
"""`draft`: a small model proposes; `mtp`: a head that reads the main model's state; `ngram`: the text so far."""


class ModelFile(Border):
    """One weights file as it lies on a rig, with its proof of identity."""

    name: str
    """The checkpoint's name in the catalogue, else the file's name."""
    path: str
    """Absolute, on the rig."""
    sha256: str
    size_bytes: int
    source: str
    """Where it came from, in words: a hub repository at a revision, a wheel, a path."""
    revision: str | None = None
    pinned_on_first_use: bool = False
    """True where no hash was held beforehand: the first download set it."""


class Drafter(Border):
    """What proposes tokens in speculative decoding, and how many per step."""

    method: DraftMethod
    model: ModelFile | None = None
    draft_tokens: int = Field(ge=1, le=64)


class ServeSpec(Border):
    """What is wanted of an engine. Every engine honours each field or refuses it; none is dropped silently."""

    engine: str
    model: ModelFile
    drafter: Drafter | None = None
    context_tokens: int = Field(default=4096, ge=16, le=1_048_576)
    """Prompt and reply of one request; every slot has this much."""
    parallel: int = Field(default=4, ge=1, le=1024)
    """Requests decoded at once; more than that queue in the engine."""
    port: int = Field(ge=1, le=65535)
    alias: str
    """The model name in requests."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    extra_args: tuple[str, ...] = ()
    """The one way past the fields above; recorded in the report as part of argv."""


class Step(Border):
    """One command of a build, run on the rig as a job of its own."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)


class BuildPlan(Border):
    """How an engine comes to be on a rig. Equal keys mean interchangeable results."""

    engine: str
    version: str
    key: str
    """Names the folder under `rig_home/engines/`: engine, version, and whatever else the binary depends on."""
    files: dict[str, str] = Field(default_factory=dict)
    """Absolute path on the rig -> text, written before the first step."""
    steps: tuple[Step, ...]
    version_argv: tuple[str, ...]
    """Prints the installed version; the build is done when it exits with 0."""


class LaunchPlan(Border):
    """Everything needed to start an engine: no decision is left to whoever runs it."""

    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    """Absolute path on the rig -> text, written before the start."""
    port: int
    ready_timeout_s: float = 120.0
    runs_on: str = "cpu"
    """The accelerator's catalogue name; what the report names, so never the card that stays idle."""
    failure_lines: dict[str, str] = Field(default_factory=dict)
    """Regular expression over a line of the engine's log -> what it means, in words. The first that matches counts."""
    warning_lines: dict[str, str] = Field(default_factory=dict)
    """The same for lines that do not end the engine, but belong in a report."""


class StreamKeys(Border):
    """Where an engine puts its own figures in the stream, as dotted paths into a chunk; null where it has none."""

    drafted: str | None = None
    accepted: str | None = None
    cached_tokens: str | None = "usage.prompt_tokens_details.cached_tokens"
    server_prefill_ms: str | None = None
    server_decode_ms: str | None = None


class ToolsProbe(Border):
    """Where an engine says whether the served model's chat template knows tools."""

    path: str
    """GET there answers a JSON object."""
    key: str
    """Dotted path into it; `false` there means that tools are not supported, anything else that they may be."""


class RequestFields(Border):
    """How to ask this engine, as data, so that `evals` needs no knowledge of engines."""

    body: dict[str, JsonValue] = Field(default_factory=dict)
    """Added to every request, e.g. prefix cache off, thinking off."""
    exact_length: dict[str, JsonValue] = Field(default_factory=dict)
    """Added where the reply must have exactly `max_tokens` tokens, e.g. `ignore_eos`."""
    stream_options: dict[str, JsonValue] = Field(default_factory=lambda: {"include_usage": True})
    tokenize_path: str | None = None
    """POST `{"content": text}` there gives `{"tokens": [...]}`; null: lengths are fitted by calibration requests."""
    stream_keys: StreamKeys = StreamKeys()
    tools_probe: ToolsProbe | None = None
    """Null: whether tools work shows itself when they are sent."""


class Endpoint(Border):
    """An OpenAI-compatible address that answers."""

    base_url: str
    """Without `/v1`, e.g. `http://127.0.0.1:8080`."""
    model: str
    request: RequestFields = RequestFields()
    context_tokens: int | None = None
    parallel: int | None = None
    api_key_env: str | None = None
    """The environment variable that holds the key; the key itself never lies in a spec or a report."""


class Arm(Border):
    """One rig and one serve spec under test, as the report names it; unknown fields are null."""

    rig: str | None = None
    accelerator: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    checkpoint: ModelFile | None = None
    drafter: Drafter | None = None
    draft_tokens: int | None = None
    argv: tuple[str, ...] | None = None
