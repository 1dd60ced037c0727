"""What is kept of a recording, and what may stand on the wire."""

import pytest

from pypto_serving.profile.v1 import profile_pb2 as pb
from pypto_serving.recording.frames import check_part, check_spans, encode_spans
from pypto_serving.recording.recorder import Level, RecordingLimits, Span, SpanRecorder
from pypto_serving.wire.checks import FrameError


def recorder(max_spans: int = 3) -> SpanRecorder:
    return SpanRecorder("a", RecordingLimits(Level.STEPS, 1.0, max_spans), clock=lambda: 1000)


def test_what_is_too_many_is_counted() -> None:
    full = recorder(max_spans=3)
    for index in range(10):
        full.add(Span(str(index), "t", "", 1000, 1))
    assert [span.name for span in full.spans()] == ["0", "1", "2"]
    [part] = encode_spans(full)
    assert (part.num_dropped, part.is_last) == (7, True)


def test_what_begins_after_the_end_is_no_part_of_it() -> None:
    kept = recorder()
    kept.add(Span("before", "t", "", 10**9 + 999, 10**9))
    kept.add(Span("after", "t", "", 10**9 + 1000, 1))
    assert [span.name for span in kept.spans()] == ["before"]
    assert kept.num_dropped == 0


def named(*names: str) -> list[Span]:
    return [Span(name, "t", "", 1000, 1) for name in names]


def test_noted_spans_are_made_when_they_are_looked_at() -> None:
    kept, made = recorder(), []

    def make(*names: str) -> list[Span]:
        made.extend(names)
        return named(*names)

    kept.note(1000, 2, make, "a", "b")
    assert not made
    assert [[span.name for span in part.spans] for part in encode_spans(kept)] == [["a", "b"]] and made == ["a", "b"]


def test_noted_spans_keep_to_the_limits() -> None:
    kept = recorder(max_spans=3)
    kept.note(1000, 2, named, "a", "b")
    kept.note(1000, 2, named, "c", "d")
    kept.add(*named("e"))
    kept.add(*named("f"))
    kept.note(10**9 + 1000, 1, named, "late")
    assert (sorted(span.name for span in kept.spans()), kept.num_dropped) == (["a", "b", "e"], 3)


@pytest.mark.parametrize("count", [0, 1, 2000, 2001, 4000])
def test_the_last_part_says_so(count: int) -> None:
    kept = recorder(max_spans=count)
    kept.note(1000, count, named, *map(str, range(count)))
    parts = list(encode_spans(kept))
    assert [span.name for part in parts for span in part.spans] == list(map(str, range(count)))
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]


def test_what_is_too_long_is_cut_and_then_accepted() -> None:
    kept = recorder()
    kept.add(Span("n" * 999, "t" * 999, "r" * 999, 1000, -5, ["f" * 9999] * 2000, {"count": 1}, {"label": "l" * 9999}))
    [part] = encode_spans(kept)
    check_part(part)
    check_spans(part)
    assert (len(part.spans[0].name), part.spans[0].duration_ns, part.spans[0].counts["count"]) == (256, 0, 1)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"recording_id": ""}, "spans.recording_id"),
        ({"spans": [pb.Span()] * 2001}, "spans.spans (number): 2001"),
        ({"spans": [pb.Span(name="n" * 257)]}, "(name, track, row) (length): 257"),
        ({"spans": [pb.Span(begin_ns=2**63)]}, "spans.spans.begin_ns"),
        ({"spans": [pb.Span(duration_ns=2**63)]}, "spans.spans.duration_ns"),
        ({"spans": [pb.Span(flows=["x"] * 1025)]}, "spans.spans.flows (number): 1025"),
        ({"spans": [pb.Span(labels={str(index): "" for index in range(17)})]}, "(counts, labels): 17"),
        ({"spans": [pb.Span(labels={"x": "y" * 1101})]}, "(flows, counts, labels) (length): 1101"),
        ({"notes": ["x"] * 65}, "spans.notes (number): 65"),
        ({"notes": ["x" * 1001]}, "spans.notes (length): 1001"),
    ],
)
def test_hostile_spans_are_refused(fields: dict[str, object], complaint: str) -> None:
    spans = pb.Spans(**{"recording_id": "a", **fields})
    with pytest.raises(FrameError) as caught:
        check_part(spans)
        check_spans(spans)
    assert complaint in str(caught.value)
