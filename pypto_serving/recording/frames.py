"""Recordings and their spans on the wire. Either side may be hostile: a frame is checked as a whole."""

from collections.abc import Iterator, Sequence
from itertools import islice

from pypto_serving.profile.v1 import profile_pb2 as pb
from pypto_serving.recording.recorder import Level, RecordingLimits, Span, SpanRecorder
from pypto_serving.wire.checks import check_name, check_range

MAX_SECONDS = 600.0
MAX_SPANS = 1_000_000
#: For so long what is over waits to be fetched.
KEEP_SECONDS = 300.0
_SPANS_PER_FRAME = 2000
_MAX_NAME, _MAX_TEXT = 256, 1100
_MAX_FLOWS, _MAX_FACTS, _MAX_NOTES, _MAX_NOTE = 1024, 16, 64, 1000
_MAX_INT64 = 2**63 - 1


def encode_recording(recording_id: str, limits: RecordingLimits, is_over: bool = False) -> pb.Recording:
    """What a process is told."""
    return pb.Recording(
        id=recording_id,
        level=pb.Level.ValueType(limits.level),
        max_milliseconds=round(limits.max_seconds * 1000),
        max_spans=limits.max_spans,
        is_over=is_over,
    )


def read_recording(recording: pb.Recording) -> RecordingLimits:
    """What is to be recorded; raises FrameError. A level that is not known means the last one that is."""
    check_name("recording.id", recording.id)
    check_range("recording.level", recording.level, 1, 2**31 - 1)
    check_range("recording.max_milliseconds", recording.max_milliseconds, 1, MAX_SECONDS * 1000)
    check_range("recording.max_spans", recording.max_spans, 1, MAX_SPANS)
    return RecordingLimits(Level(min(recording.level, max(Level))), recording.max_milliseconds / 1000, recording.max_spans)


def encode_spans(recorder: SpanRecorder) -> Iterator[pb.Spans]:
    """All that was recorded, in parts; the last one may be empty. It takes long where spans are many, and may be done on any thread."""
    spans = recorder.spans()
    part, is_last = list(islice(spans, _SPANS_PER_FRAME)), False
    while not is_last:
        following = list(islice(spans, _SPANS_PER_FRAME))
        is_last = not following
        message = pb.Spans(recording_id=recorder.recording_id, spans=map(encode_span, part), is_last=is_last)
        if is_last:
            message.num_dropped = recorder.num_dropped
            message.notes.extend(note[:_MAX_NOTE] for note in recorder.notes[:_MAX_NOTES])
        yield message
        part = following


def nothing_recorded(recording_id: str, note: str) -> pb.Spans:
    """The answer where a recording is not known."""
    return pb.Spans(recording_id=recording_id, is_last=True, notes=[note])


def encode_span(span: Span) -> pb.Span:
    """A span on the wire, cut to what that allows."""
    return pb.Span(
        name=span.name[:_MAX_NAME],
        track=span.track[:_MAX_NAME],
        row=span.row[:_MAX_NAME],
        begin_ns=span.begin_ns,
        duration_ns=max(0, span.duration_ns),
        flows=[flow[:_MAX_TEXT] for flow in span.flows[:_MAX_FLOWS]],
        counts=span.counts,
        labels={name: text[:_MAX_TEXT] for name, text in span.labels.items()},
    )


def check_part(spans: pb.Spans) -> None:
    """Raise FrameError for what cannot be a part, without a look at its spans."""
    check_name("spans.recording_id", spans.recording_id)
    check_range("spans.spans (number)", len(spans.spans), 0, _SPANS_PER_FRAME)
    check_range("spans.notes (number)", len(spans.notes), 0, _MAX_NOTES)


def check_spans(spans: pb.Spans) -> None:
    """Raise FrameError for spans that are none. It takes long where they are many, and may be done on any thread."""
    _check_lengths("spans.notes", spans.notes, _MAX_NOTE)
    for span in spans.spans:
        _check_lengths("spans.spans (name, track, row)", (span.name, span.track, span.row), _MAX_NAME)
        check_range("spans.spans.begin_ns", span.begin_ns, 0, _MAX_INT64)
        check_range("spans.spans.duration_ns", span.duration_ns, 0, _MAX_INT64)
        check_range("spans.spans.flows (number)", len(span.flows), 0, _MAX_FLOWS)
        check_range("spans.spans (counts, labels)", max(len(span.counts), len(span.labels)), 0, _MAX_FACTS)
        _check_lengths("spans.spans (flows, counts, labels)", (*span.flows, *span.counts, *span.labels, *span.labels.values()), _MAX_TEXT)


def _check_lengths(field: str, texts: Sequence[str], most: int) -> None:
    check_range(f"{field} (length)", max(map(len, texts), default=0), 0, most)
