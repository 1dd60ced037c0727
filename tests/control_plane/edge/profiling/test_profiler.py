"""Who takes part in a recording, and what becomes of it when they come, go, or know nothing of it."""

import asyncio
import threading
import weakref
from collections.abc import ItemsView
from dataclasses import dataclass, field

import pytest

from control_plane.edge.profiling import profiler
from control_plane.edge.profiling.profiler import ProcessSpans, Profiler, ProfileRefused
from pypto_serving.log.v1 import log_pb2
from pypto_serving.profile.v1 import profile_pb2 as pb
from pypto_serving.recording.clock_offset import PeerClock
from pypto_serving.recording.frames import check_spans
from pypto_serving.recording.recorder import Level, RecordingLimits, Span, SpanRecorder
from pypto_serving.wire.checks import FrameError

LIMITS = RecordingLimits(Level.STEPS, 60.0, 100)


@dataclass(eq=False)
class Process:
    """Another process; it answers when a test lets it."""

    process_name: str
    can_record: bool = True
    knows_log_levels: bool = True
    peer_clock: PeerClock = field(default_factory=PeerClock)
    told: list[pb.Recording] = field(default_factory=list)

    def record(self, recording: pb.Recording) -> None:
        self.told.append(recording)

    def set_log_level(self, change: log_pb2.LevelChange) -> None:
        raise NotImplementedError

    def spans(self, *names: str, is_last: bool = True) -> pb.Spans:
        spans = [pb.Span(name=name, track="t", begin_ns=1) for name in names]
        return pb.Spans(recording_id=self.told[-1].id, spans=spans, is_last=is_last)


class Rig:
    def __init__(self, keep_seconds: float = 60.0) -> None:
        self.profiler = Profiler("scheduler", keep_seconds)
        self.recorder: SpanRecorder | None = None
        self.profiler.add_local(self._record)

    def _record(self, recorder: SpanRecorder | None) -> None:
        self.recorder = recorder

    def join(self, name: str, **fields: bool) -> Process:
        process = Process(name, **fields)
        self.profiler.joined(process)
        return process


@pytest.fixture
async def rig() -> Rig:
    return Rig()


def names(process: ProcessSpans) -> list[str]:
    return [span.name for part in process.parts for span in part.spans]


async def test_everybody_is_told_and_asked(rig: Rig) -> None:
    worker, front_end = rig.join("worker"), rig.join("front end")
    recording_id, able, left_out = rig.profiler.start(LIMITS)
    assert (able, left_out) == (["scheduler", "worker", "front end"], [])
    rig.recorder.add(Span("own", "t", "", 1, 1))
    stopping = asyncio.create_task(rig.profiler.stop(recording_id))
    await asyncio.sleep(0)
    assert rig.recorder is None
    assert [told.is_over for told in worker.told] == [False, True]
    rig.profiler.receive(worker, worker.spans("one", is_last=False))
    rig.profiler.receive(worker, worker.spans("two"))
    rig.profiler.receive(front_end, front_end.spans())
    own, first, second = await stopping
    assert (names(own), names(first), names(second)) == (["own"], ["one", "two"], [])


async def test_an_older_one_is_left_out_and_not_told(rig: Rig) -> None:
    old = rig.join("old worker", can_record=False)
    recording_id, able, left_out = rig.profiler.start(LIMITS)
    assert (able, left_out) == (["scheduler"], ["old worker"])
    _, told = await rig.profiler.stop(recording_id)
    assert not old.told and "older" in told.notes[0]


async def test_one_that_is_lost_is_not_waited_for(rig: Rig) -> None:
    worker = rig.join("worker")
    rig.profiler.start(LIMITS)
    stopping = asyncio.create_task(rig.profiler.stop(""))
    await asyncio.sleep(0)
    rig.profiler.receive(worker, worker.spans("one", is_last=False))
    rig.profiler.left(worker)
    _, told = await stopping
    assert names(told) == ["one"] and "lost" in told.notes[0]


async def test_one_that_comes_later_takes_part(rig: Rig) -> None:
    rig.profiler.start(LIMITS)
    worker = rig.join("worker")
    assert [told.is_over for told in worker.told] == [False]
    stopping = asyncio.create_task(rig.profiler.stop(""))
    await asyncio.sleep(0)
    rig.profiler.receive(worker, worker.spans("one"))
    _, told = await stopping
    assert names(told) == ["one"] and "came into session while" in told.notes[0]


async def test_one_that_has_a_new_stream_is_told_again(rig: Rig) -> None:
    worker = rig.join("worker")
    rig.profiler.start(LIMITS)
    rig.profiler.resumed(worker)
    assert [told.is_over for told in worker.told] == [False, False]
    stopping = asyncio.create_task(rig.profiler.stop(""))
    await asyncio.sleep(0)
    rig.profiler.resumed(worker)
    assert [told.is_over for told in worker.told] == [False, False, True, True]
    rig.profiler.receive(worker, worker.spans())
    await stopping
    rig.profiler.resumed(worker)
    assert len(worker.told) == 4


class Labels(dict[str, str]):
    """Remembers which threads have read it."""

    def __init__(self) -> None:
        super().__init__()
        self.read_by: list[str] = []

    def items(self) -> ItemsView[str, str]:
        self.read_by.append(threading.current_thread().name)
        return super().items()


async def test_spans_that_are_on_their_way_are_asked_for_once(rig: Rig) -> None:
    worker = rig.join("worker")
    rig.profiler.start(LIMITS)
    interrupted = asyncio.create_task(rig.profiler.stop(""))
    await asyncio.sleep(0)
    rig.profiler.receive(worker, worker.spans("one", is_last=False))
    interrupted.cancel()
    stopping = asyncio.create_task(rig.profiler.stop(""))
    await asyncio.sleep(0)
    rig.profiler.receive(worker, worker.spans("two"))
    assert [told.is_over for told in worker.told] == [False, True]
    assert names((await stopping)[1]) == ["one", "two"]


async def test_what_came_over_a_broken_stream_comes_again_and_counts_once(rig: Rig) -> None:
    worker = rig.join("worker")
    rig.profiler.start(LIMITS)
    stopping = asyncio.create_task(rig.profiler.stop(""))
    await asyncio.sleep(0)
    rig.profiler.receive(worker, worker.spans(*"x" * 60, is_last=False))
    rig.profiler.resumed(worker)
    rig.profiler.receive(worker, worker.spans(*"x" * 60))
    _, told = await stopping
    assert (len(names(told)), told.notes) == (60, [])


async def test_own_spans_are_written_beside_the_event_loop(rig: Rig) -> None:
    labels = Labels()
    rig.profiler.start(LIMITS)
    rig.recorder.add(Span("own", "t", "", 1, 1, (), {}, labels))
    await rig.profiler.stop("")
    assert len(labels.read_by) == 1 and labels.read_by != [threading.current_thread().name]


async def test_it_ends_by_itself_and_can_be_fetched_later(rig: Rig) -> None:
    recording_id, _, _ = rig.profiler.start(RecordingLimits(Level.STEPS, 0.001, 100))
    while rig.recorder is not None:
        await asyncio.sleep(0.001)
    assert [told.process for told in await rig.profiler.stop(recording_id)] == ["scheduler"]


async def test_one_runs_at_a_time_and_is_fetched_once(rig: Rig) -> None:
    with pytest.raises(ProfileRefused, match="no recording to be fetched"):
        await rig.profiler.stop("")
    recording_id, _, _ = rig.profiler.start(LIMITS)
    with pytest.raises(ProfileRefused, match=f"recording {recording_id} runs"):
        rig.profiler.start(LIMITS)
    with pytest.raises(ProfileRefused, match="no recording other"):
        await rig.profiler.stop("other")
    await rig.profiler.stop("")
    with pytest.raises(ProfileRefused):
        await rig.profiler.stop("")
    rig.profiler.start(LIMITS)


async def test_nothing_begins_and_nobody_else_fetches_while_one_is_fetched(rig: Rig) -> None:
    rig.join("worker")
    recording_id, _, _ = rig.profiler.start(LIMITS)
    stopping = asyncio.create_task(rig.profiler.stop(recording_id))
    await asyncio.sleep(0)
    with pytest.raises(ProfileRefused, match=f"recording {recording_id} is being fetched"):
        rig.profiler.start(LIMITS)
    with pytest.raises(ProfileRefused, match="there is no recording"):
        await rig.profiler.stop(recording_id)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    rig.profiler.start(LIMITS)  # who gave up keeps nobody out


async def test_nobody_sends_more_than_it_may_keep(rig: Rig) -> None:
    worker = rig.join("worker")
    rig.profiler.start(LIMITS)
    stopping = asyncio.create_task(rig.profiler.stop(""))
    await asyncio.sleep(0)
    rig.profiler.receive(worker, worker.spans(*"x" * 100, is_last=False))
    rig.profiler.receive(worker, worker.spans("y", is_last=False))
    _, told = await stopping
    assert len(names(told)) == 100 and "more spans" in told.notes[0]


async def test_spans_that_nobody_asked_for_are_dropped_and_broken_ones_refused(rig: Rig) -> None:
    worker = rig.join("worker")
    rig.profiler.receive(worker, pb.Spans(recording_id="x", is_last=True))
    with pytest.raises(FrameError, match=r"spans\.recording_id"):
        rig.profiler.receive(worker, pb.Spans())


async def test_spans_are_looked_at_on_another_thread_and_broken_ones_are_left_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at_on: list[str] = []

    def noted(spans: pb.Spans) -> None:
        looked_at_on.append(threading.current_thread().name)
        check_spans(spans)

    monkeypatch.setattr(profiler, "check_spans", noted)
    broken, sound = rig.join("broken"), rig.join("sound")
    rig.profiler.start(LIMITS)
    stopping = asyncio.create_task(rig.profiler.stop(""))
    await asyncio.sleep(0)
    rig.profiler.receive(broken, broken.spans("one", is_last=False))
    rig.profiler.receive(broken, broken.spans("x" * 257))
    rig.profiler.receive(sound, sound.spans("two"))
    _, first, second = await stopping
    assert (names(first), names(second)) == ([], ["two"])
    assert first.notes == ["what it has sent is broken, and left out: spans.spans (name, track, row) (length): 257, must be from 0 to 256"]
    assert len(looked_at_on) == 3 and threading.current_thread().name not in looked_at_on


async def test_nobody_sends_parts_without_end(rig: Rig) -> None:
    worker = rig.join("worker")
    rig.profiler.start(LIMITS)
    for _ in range(1000):
        rig.profiler.receive(worker, worker.spans(is_last=False))
    _, told = await rig.profiler.stop("")
    assert len(told.parts) == LIMITS.max_spans and "more spans" in told.notes[0]


async def test_one_that_nobody_fetches_is_dropped_and_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(keep_seconds=0.001)
    recording_id, _, _ = rig.profiler.start(RecordingLimits(Level.STEPS, 0.001, 100))
    kept = weakref.ref(rig.recorder)
    while kept() is not None:
        await asyncio.sleep(0.001)
    [dropped] = [record for record in caplog.records if "recording dropped" in record.message]
    assert (dropped.recording, dropped.seconds) == (recording_id, 0.001)
    with pytest.raises(ProfileRefused, match=f"there is no recording {recording_id}"):
        await rig.profiler.stop(recording_id)


async def test_one_that_is_being_fetched_is_not_dropped() -> None:
    rig = Rig(keep_seconds=0.001)
    worker = rig.join("worker")
    rig.profiler.start(LIMITS)
    stopping = asyncio.create_task(rig.profiler.stop(""))
    await asyncio.sleep(0.01)
    rig.profiler.receive(worker, worker.spans("one"))
    _, told = await stopping
    assert names(told) == ["one"]
