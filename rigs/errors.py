"""What can go wrong, split by who must act.

RigsError
  + UsageError             fix the call
  |   + UnknownNameError       no such rig, engine, checkpoint, job ...; the message lists what there is
  |   + UnsupportedFeatureError  the engine or the rig cannot do it, and why
  |   + MissingExtraError      a library that is installed on demand only; the message has the command
  + RemoteError            look at the rig
  |   + UnreachableError       the connection failed; the same call may work later
  |   + CommandError           a command on the rig ended with an error
  |   + EngineNotReadyError    the engine started, but never answered as it should
  |   + CheckpointError        weights that cannot be had, or are not what they should be
  |   + RigFullError           no space left where the rig writes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def _rebuild(cls: type[RigsError], args: tuple[object, ...], fields: dict[str, object]) -> RigsError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(fields)
    return error


class RigsError(Exception):
    """The message says what failed, on what, why, and what to do next."""

    def __reduce__(self) -> tuple[object, ...]:
        # Steps of a workflow store their errors; a subclass with its own __init__ must come back whole.
        return (_rebuild, (type(self), self.args, self.__dict__))


class UsageError(RigsError):
    """The caller can mend it by calling differently."""


class UnknownNameError(UsageError):
    """A name that is not known; the message lists the known ones."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        listed = ", ".join(sorted(known)) or "none"
        super().__init__(f"Unknown {what} {name!r}. Available: {listed}.{' ' + hint if hint else ''}")


class UnsupportedFeatureError(UsageError):
    """The engine, or the rig it would run on, lacks what was asked for."""


class MissingExtraError(UsageError):
    """What was asked for needs a library that is not installed with rigbench itself."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs libraries that are not installed. Add them where rigbench is: "
            f"uv tool install 'rigbench[{extra}]', or pip install 'rigbench[{extra}]'; then `rigbench worker stop`."
        )


class RemoteError(RigsError):
    """Something on the rig, or on the way to it, failed."""


class UnreachableError(RemoteError):
    """The connection to the rig failed or broke; trying again later may work."""


class CommandError(RemoteError):
    """A command on the rig ended with a code other than 0."""

    def __init__(self, argv: Sequence[str], exit_code: int | None, stderr: str, doing: str = "") -> None:
        self.argv = tuple(argv)
        self.exit_code = exit_code
        self.stderr_tail = stderr[-2000:].strip()
        what = doing or " ".join(argv)[:200]
        super().__init__(f"{what}: exit code {exit_code}. {self.stderr_tail or 'It printed no error.'}")


class EngineNotReadyError(RemoteError):
    """The engine did not reach the state in which it answers a known question."""


class CheckpointError(RemoteError):
    """Weights that cannot be fetched, are truncated, or have another hash than the pinned one."""


class RigFullError(RemoteError):
    """A disk on the rig has no space left."""
