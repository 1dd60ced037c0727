"""Recordings as operators ask for them, and get them."""

from collections.abc import Iterator

from control_plane.edge.profiling.profiler import ProcessSpans
from pypto_serving.admin.v1 import admin_pb2
from pypto_serving.recording.frames import MAX_SECONDS, MAX_SPANS
from pypto_serving.recording.recorder import Level, RecordingLimits
from pypto_serving.wire.checks import check_range

_DEFAULT_SECONDS, _DEFAULT_SPANS = 60.0, 200_000
_MIN_SECONDS = 0.001


def read_limits(request: admin_pb2.StartProfileRequest) -> RecordingLimits:
    """What is to be recorded; raises FrameError."""
    check_range("level", request.level, 0, max(Level))
    seconds = request.max_seconds if request.HasField("max_seconds") else _DEFAULT_SECONDS
    max_spans = request.max_spans if request.HasField("max_spans") else _DEFAULT_SPANS
    check_range("max_seconds", seconds, _MIN_SECONDS, MAX_SECONDS)
    check_range("max_spans", max_spans, 1, MAX_SPANS)
    return RecordingLimits(Level(request.level or Level.STEPS), seconds, max_spans)


def write_parts(process: ProcessSpans) -> Iterator[admin_pb2.StopProfileResponse]:
    """What one process has recorded; at least one part."""
    for index, part in enumerate(process.parts or [None]):
        response = admin_pb2.StopProfileResponse(process=process.process)
        if part is not None:
            response.spans.extend(part.spans)
            response.num_dropped = part.num_dropped
            response.notes.extend(part.notes)
        if process.offset is not None:
            response.clock_offset_ns = process.offset.nanoseconds
            response.clock_error_ns = process.offset.error_ns
        if index + 1 >= len(process.parts):
            response.notes.extend(process.notes)
        yield response
