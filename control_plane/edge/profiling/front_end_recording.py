"""Recordings in a front end that is a process of its own."""

from collections.abc import Callable

from control_plane.edge.profiling.profiler import LocalRecorder
from pypto_serving.recording.member import RecordingMember
from pypto_serving.recording.recorder import SpanRecorder


class FrontEndRecording(RecordingMember):
    """Belongs to the clients' event loop."""

    def __init__(self, record: LocalRecorder, ready: Callable[[], None]) -> None:
        """`record` begins and ends; `ready` is called when there are parts to be sent."""

        def end(recorder: SpanRecorder, done: Callable[[], None]) -> None:
            record(None)
            done()

        super().__init__(record, end, ready)
