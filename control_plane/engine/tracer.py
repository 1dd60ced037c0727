"""What the engine says of its work while it works, to whoever records it."""

import logging

from control_plane.core.replica import Replica
from control_plane.core.step import Step
from control_plane.engine.ports import Failure
from control_plane.engine.request import LiveChoice

_log = logging.getLogger(__name__)

#: All that a tracer can be told of, but its own failure.
_CALLS = ("pass_begun", "result_applied", "scheduled", "step_sent", "published", "result_arrived", "choice_ended")


class EngineTracer:
    """Hears everything, and does nothing with it. Every call is made on the engine's event loop and must not block.

    A pass of the loop is told from its begin; each later call says what the time since the one before it was spent on.
    """

    def pass_begun(self) -> None:
        """A pass of the loop begins."""

    def result_applied(self, replica: Replica, step_id: int, num_tokens: int) -> None:
        """The result of a step was taken in, which brought so many tokens."""

    def scheduled(self) -> None:
        """Steps were built, or there was nothing to build."""

    def step_sent(self, replica: Replica, step: Step) -> None:
        """A step was handed to the link to its worker."""

    def published(self) -> None:
        """The pass has told front ends what it brought."""

    def result_arrived(self, replica: Replica, step_id: int) -> None:
        """A result came from the link; it is taken in by the next pass."""

    def choice_ended(self, choice: LiveChoice, failure: Failure | None) -> None:
        """A choice has ended; what is known of it stands in it."""

    def failed(self, error: Exception) -> None:
        """One of these calls has raised `error`, which nobody but the log is told."""


class Tracers(EngineTracer):
    """Tells all who listen. One that raises harms neither requests nor those beside it, and is logged once for each kind of error.

    A call is told to those only who do something with it: most passes of most recordings have nothing to tell to anybody.
    """

    def __init__(self) -> None:
        self._listening: tuple[EngineTracer, ...] = ()
        self._hearers: dict[str, tuple[EngineTracer, ...]] = dict.fromkeys(_CALLS, ())  # of each call
        self._logged: set[tuple[type, type]] = set()

    def add(self, tracer: EngineTracer) -> None:
        """Let one listen from now on."""
        self._listen((*self._listening, tracer))

    def remove(self, tracer: EngineTracer) -> None:
        """Let one listen no more."""
        self._listen(tuple(each for each in self._listening if each is not tracer))

    def pass_begun(self) -> None:
        self._tell("pass_begun")

    def result_applied(self, replica: Replica, step_id: int, num_tokens: int) -> None:
        self._tell("result_applied", replica, step_id, num_tokens)

    def scheduled(self) -> None:
        self._tell("scheduled")

    def step_sent(self, replica: Replica, step: Step) -> None:
        self._tell("step_sent", replica, step)

    def published(self) -> None:
        self._tell("published")

    def result_arrived(self, replica: Replica, step_id: int) -> None:
        self._tell("result_arrived", replica, step_id)

    def choice_ended(self, choice: LiveChoice, failure: Failure | None) -> None:
        self._tell("choice_ended", choice, failure)

    def _listen(self, tracers: tuple[EngineTracer, ...]) -> None:
        self._listening = tracers
        self._hearers = {call: tuple(tracer for tracer in tracers if _hears(tracer, call)) for call in _CALLS}

    def _tell(self, call: str, *told: object) -> None:
        for tracer in self._hearers[call]:
            try:
                getattr(tracer, call)(*told)
            except Exception as error:
                kind = type(tracer), type(error)
                if kind not in self._logged:
                    self._logged.add(kind)
                    _log.exception("what observes the engine has failed; requests go on", extra={"observer": type(tracer).__name__})
                tracer.failed(error)


def _hears(tracer: EngineTracer, call: str) -> bool:
    """Whether a tracer does something with a call."""
    return getattr(getattr(tracer, call), "__func__", None) is not getattr(EngineTracer, call)
