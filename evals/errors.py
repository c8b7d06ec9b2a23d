"""What can go wrong while measuring, split by who must act.

RigsError
  + EvalError             the measurement cannot go on; the message says what to do
      + EndpointGoneError     nothing answers any more: look at the engine, then the same unit may be resumed
      + WorkloadError         what was asked for cannot be sent or measured: change the unit
      + IncomparableReportsError  two reports of unlike work: measure both with the same one
      + UnsupportedWorkError  the endpoint lacks what the unit needs: serve another model, or measure something else

A failed *request* is none of these: it is a `RequestRecord` with status `failed`, counted in the report.
"""

from __future__ import annotations

from rigs.errors import RigsError


class EvalError(RigsError):
    """The measurement, or a question asked on its behalf, failed as a whole."""


class EndpointGoneError(EvalError):
    """The endpoint cannot be reached or does not answer in time; everything recorded so far stands."""


class WorkloadError(EvalError):
    """The unit asks for something that cannot be sent or measured."""


class IncomparableReportsError(EvalError):
    """The figures of these reports say nothing about each other."""


class UnsupportedWorkError(EvalError):
    """The endpoint itself says that it lacks what the unit needs; nothing was sent, and the report says so."""
