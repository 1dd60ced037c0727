"""The profiler of a library may fail at any call: a recording goes on without operators."""

import pytest

from pypto_serving.recording.recorder import Level, RecordingLimits, SpanRecorder
from worker.step import Step
from worker.step_trace import StepTrace, no_operators


class Operators:
    """Fails at one of its calls."""

    def __init__(self, fails_at: str) -> None:
        self._fails_at = fails_at

    def start(self) -> None:
        self._call("start")

    def stop(self) -> None:
        self._call("stop")

    def add_to(self, recorder: SpanRecorder, num_steps: int) -> None:
        self._call("add_to")

    def _call(self, name: str) -> None:
        if name == self._fails_at:
            raise OSError(f"{name} failed")


@pytest.mark.parametrize("fails_at", ["start", "stop", "add_to"])
def test_what_the_library_raises_becomes_a_note(fails_at: str) -> None:
    recorder = SpanRecorder("a", RecordingLimits(Level.OPERATORS, 60.0, 100))
    trace = StepTrace(recorder, "worker-1", lambda level: Operators(fails_at))
    trace.begin()
    trace.end()
    trace.add_operators()
    assert recorder.notes == [f"no operators: OSError: {fails_at} failed"]
    assert not trace.is_switching


def test_a_step_that_cannot_be_told_ends_the_recording_and_not_the_thread() -> None:
    recorder = SpanRecorder("a", RecordingLimits(Level.STEPS, 60.0, 100))
    trace = StepTrace(recorder, "worker-1", no_operators)
    for _ in range(2):
        trace.executed(Step(1), None, ended_ns=2000, device_ns=1000)
    assert not list(recorder.spans())
    [note] = recorder.notes
    assert note.startswith("it ends early, as it has failed: AttributeError: ")
