"""What a model calls in some steps, as the profiler of torch sees it."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pypto_serving.recording.recorder import Level, Span, SpanRecorder

_MARK = "pypto_serving.clock"
_NUM_MARKS = 5


class OperatorProfile:
    """One run of the profiler; `start` and `stop` are called on the thread that owns the device.

    The profiler has a clock of its own: marks that are set between two readings of ours tell how the two stand to each other.
    """

    def __init__(self, level: Level, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._profile = profile(activities=_activities(level), record_shapes=level >= Level.KERNELS, acc_events=True)
        self._marked: list[tuple[int, int]] = []  # before and after each mark

    def start(self) -> None:
        """Begin with the next step."""
        self._profile.start()
        for _ in range(_NUM_MARKS):
            before = self._clock()
            with record_function(_MARK):
                pass
            self._marked.append((before, self._clock()))

    def stop(self) -> None:
        """End after the step before."""
        self._profile.stop()

    def add_to(self, recorder: SpanRecorder, num_steps: int) -> None:
        """Add what was seen in so many steps; takes seconds, and may be done on any thread when the profiler has stopped."""
        events: list[Any] = list(self._profile.events() or ())  # type: ignore[no-untyped-call]
        marks = [event for event in events if event.name == _MARK]
        if len(marks) != len(self._marked):
            recorder.notes.append(
                f"the profiler of torch saw {len(marks)} of {len(self._marked)} marks of its clock: operators are left out"
            )
            return
        (before, after), mark = min(zip(self._marked, marks, strict=True), key=lambda pair: pair[0][1] - pair[0][0])
        shift_ns = (before + after) // 2 - round((mark.time_range.start + mark.time_range.end) * 500)
        for event in events:
            if event.name != _MARK:
                recorder.add(_span(event, shift_ns))
        recorder.notes.append(f"operators are those of the first {num_steps} steps")


def _activities(level: Level) -> list[ProfilerActivity]:
    """The host's, and with kernels those of an accelerator, which torch-npu calls private."""
    activities = [ProfilerActivity.CPU]
    if level >= Level.KERNELS and torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        activities.append(ProfilerActivity.CUDA if device is not None and device.type == "cuda" else ProfilerActivity.PrivateUse1)
    return activities


def _span(event: Any, shift_ns: int) -> Span:
    begin_ns, duration_ns = round(event.time_range.start * 1000) + shift_ns, round(event.time_range.elapsed_us() * 1000)
    labels = {"shapes": str(event.input_shapes)} if any(event.input_shapes or ()) else {}
    if event.device_type.name == "CPU":
        return Span(event.name, f"torch thread {event.thread}", "operators", begin_ns, duration_ns, (), {}, labels)
    return Span(event.name, f"kernels of device {event.device_index}, stream {event.device_resource_id}", "", begin_ns, duration_ns)
