"""The steps of a recording, as the thread sees them that owns the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pypto_serving.recording.flows import step_flow
from pypto_serving.recording.recorder import Level, Span, SpanRecorder
from worker.step import Step, StepResult


class Operators(Protocol):
    """Sees what a model calls."""

    def start(self) -> None:
        """Begin with the next step."""

    def stop(self) -> None:
        """End after the step before."""

    def add_to(self, recorder: SpanRecorder, num_steps: int) -> None:
        """Add what was seen in so many steps; on any thread."""


#: Makes what sees operators at a level; raises RuntimeError where nothing does.
MakeOperators = Callable[[Level], Operators]


def no_operators(level: Level) -> Operators:
    """For devices whose operators nobody sees."""
    raise RuntimeError("this worker sees none")


class StepTrace:
    """Adds a span for each step. Operators are seen in the first `max_operator_steps` only: each has hundreds of them.

    All but `add_operators` is called on the device's thread.
    """

    def __init__(
        self,
        recorder: SpanRecorder,
        incarnation: str,
        operators: MakeOperators,
        max_operator_steps: int = 64,
    ) -> None:
        self._recorder = recorder
        self._incarnation = incarnation
        self._make_operators = operators
        self._max_operator_steps = max_operator_steps
        self._operators: Operators | None = None
        self._sees_operators = False
        self._num_steps = 0
        self.is_switching = False  # while operators begin or cease to be seen, which takes seconds; any thread may read it

    def begin(self) -> None:
        """The next step is the first one."""
        if self._recorder.level >= Level.OPERATORS:
            with self._library_called():
                self._operators = self._make_operators(self._recorder.level)
                self._operators.start()
                self._sees_operators = True

    def executed(self, step: Step, result: StepResult, ended_ns: int, device_ns: int) -> None:
        """A step has been executed; `ended_ns` by the monotonic clock."""
        with self._recorder.harmless():
            self._add(step, result, ended_ns, device_ns)
        self._num_steps += 1
        if self._num_steps >= self._max_operator_steps:
            self._stop_operators()

    def _add(self, step: Step, result: StepResult, ended_ns: int, device_ns: int) -> None:
        counts = {
            "step": step.step_id,
            "admitted": len(step.admissions),
            "chunks": len(step.chunk_lanes),
            "chunk_tokens": int(step.chunk_tokens.sum()),
            "sampled": len(result.token_ids),
        }
        flow = (step_flow(self._incarnation, step.step_id),)
        self._recorder.add(Span(f"step {step.step_id}", "device", "", ended_ns - device_ns, device_ns, flow, counts))

    def end(self) -> None:
        """The step before was the last one."""
        self._stop_operators()

    def add_operators(self) -> None:
        """Add what the operators were; takes seconds."""
        with self._library_called():
            if self._operators is not None:
                self._operators.add_to(self._recorder, min(self._num_steps, self._max_operator_steps))

    def _stop_operators(self) -> None:
        if self._operators is not None and self._sees_operators:
            self._sees_operators = False
            with self._library_called():
                self._operators.stop()

    @contextmanager
    def _library_called(self) -> Iterator[None]:
        """What a library raises in the block is noted: steps are executed and recorded all the same."""
        self.is_switching = True
        try:
            yield
        except Exception as error:
            self._recorder.notes.append(f"no operators: {type(error).__name__}: {error}")
            self._operators = None
        finally:
            self.is_switching = False
