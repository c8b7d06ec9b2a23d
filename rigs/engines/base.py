"""What every engine is: a description that turns facts and wishes into plans. It runs nothing itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from rigs.errors import UnsupportedFeatureError
from rigs.facts import Border, RigFacts
from rigs.serving import BuildPlan, DraftMethod, LaunchPlan, RequestFields, ServeSpec


class EngineMetrics(Border):
    """Counters since the engine's start, from its own exposition; None where it tells none."""

    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None


class Engine(ABC):
    """One serving engine. Pure: the same facts and spec give the same plan."""

    name: ClassVar[str]
    title: ClassVar[str]
    version: ClassVar[str]
    """The pinned version that `plan_build` installs."""
    formats: ClassVar[frozenset[str]]
    """Checkpoint formats it loads."""
    draft_methods: ClassVar[frozenset[DraftMethod]]
    ready_path: ClassVar[str] = "/v1/models"

    @classmethod
    def build(cls) -> Self:
        return cls()

    @abstractmethod
    def plan_build(self, facts: RigFacts, rig_home: str) -> BuildPlan:
        """Say how the pinned version comes to be on the rig. Called only where `reasons` is empty."""

    @abstractmethod
    def plan_serve(self, spec: ServeSpec, facts: RigFacts, rig_home: str) -> LaunchPlan:
        """Say how it is started. Called only after `check`."""

    @abstractmethod
    def parse_version(self, output: str) -> str:
        """Read the installed version from what `version_argv` printed."""

    def parse_metrics(self, exposition: str) -> EngineMetrics:  # noqa: ARG002 - an engine without metrics reads none
        """Read the engine's own counters from its metrics page."""
        return EngineMetrics()

    def request_fields(self) -> RequestFields:
        """Say how requests to it are made, as data."""
        return RequestFields()

    def reasons(self, facts: RigFacts) -> list[str]:  # noqa: ARG002 - an engine that runs anywhere has none
        """Say in words why it cannot run on this rig; empty where it can."""
        return []

    def notes(self, facts: RigFacts) -> list[str]:  # noqa: ARG002
        """Say what one should know before choosing it on this rig, though it runs."""
        return []

    def check(self, spec: ServeSpec, facts: RigFacts) -> None:
        """Refuse what this engine or rig cannot do, before anything is built or started.

        Raises:
            UnsupportedFeatureError: with every reason.
        """
        reasons = self.reasons(facts)
        if spec.engine != self.name:
            reasons.append(f"the spec is for the engine {spec.engine!r}")
        if drafter := spec.drafter:
            if drafter.method not in self.draft_methods:
                known = ", ".join(sorted(self.draft_methods)) or "none"
                reasons.append(f"it has no drafter of the kind {drafter.method!r} (it has: {known})")
            if drafter.method == "draft" and drafter.model is None:
                reasons.append("a drafter of the kind 'draft' needs a model")
            if drafter.method == "ngram" and drafter.model is not None:
                reasons.append("a drafter of the kind 'ngram' has no model")
        if reasons:
            raise UnsupportedFeatureError(f"{self.title} cannot serve this: {'; '.join(reasons)}.")
