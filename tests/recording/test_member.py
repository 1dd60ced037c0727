"""A process that is told to record."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from pypto_serving.profile.v1 import profile_pb2 as pb
from pypto_serving.recording import member
from pypto_serving.recording.frames import encode_recording, encode_spans
from pypto_serving.recording.member import RecordingMember
from pypto_serving.recording.recorder import Level, RecordingLimits, Span, SpanRecorder
from pypto_serving.wire.checks import FrameError

LIMITS = RecordingLimits(Level.STEPS, 60.0, 5000)


class Process:
    """What is recorded, and what is sent."""

    def __init__(self, keep_seconds: float = 60.0) -> None:
        self.recorder: SpanRecorder | None = None
        self.endings: list[Callable[[], None]] = []  # of recordings whose end takes time
        self.ends_at_once = True
        self.num_ready = 0
        self.member = RecordingMember(self._begin, self._end, self._ready, keep_seconds)

    def _begin(self, recorder: SpanRecorder) -> None:
        self.recorder = recorder

    def _end(self, recorder: SpanRecorder, done: Callable[[], None]) -> None:
        assert recorder is self.recorder
        self.recorder = None
        done() if self.ends_at_once else self.endings.append(done)

    def _ready(self) -> None:
        self.num_ready += 1

    def told(self, recording_id: str = "a", is_over: bool = False, limits: RecordingLimits = LIMITS) -> None:
        self.member.told(encode_recording(recording_id, limits, is_over))

    def parts(self) -> list[pb.Spans]:
        return list(iter(self.member.next_part, None))

    async def handed_over(self, num_times: int = 1) -> list[pb.Spans]:
        while self.num_ready < num_times:
            await asyncio.sleep(0)
        return self.parts()


def span(name: str = "x") -> Span:
    return Span(name, "track", "", 1, 1)


@pytest.fixture
async def process() -> Process:
    return Process()


async def record(process: Process, count: int) -> None:
    for index in range(count):
        process.recorder.add(span(str(index)))


async def test_spans_come_in_small_parts_when_they_are_asked_for(process: Process) -> None:
    process.told()
    await record(process, 4001)
    assert process.parts() == []
    process.told(is_over=True)
    parts = await process.handed_over()
    assert process.num_ready == 1
    assert [len(part.spans) for part in parts] == [2000, 2000, 1]
    assert [part.is_last for part in parts] == [False, False, True]
    assert [span.name for part in parts for span in part.spans] == [str(index) for index in range(4001)]


async def test_the_same_told_again_changes_nothing(process: Process) -> None:
    process.told()
    recorder = process.recorder
    process.told()
    assert process.recorder is recorder


async def test_another_recording_takes_its_place(process: Process) -> None:
    process.told("a")
    await record(process, 3)
    process.told("b")
    process.told("a", is_over=True)
    [answer] = process.parts()
    assert (answer.recording_id, answer.is_last, len(answer.spans), len(answer.notes)) == ("a", True, 0, 1)
    assert process.recorder.recording_id == "b"


async def test_one_that_is_not_known_is_answered(process: Process) -> None:
    process.told("lost", is_over=True)
    [answer] = process.parts()
    assert answer.is_last and "knows nothing" in answer.notes[0]


async def test_it_ends_by_itself_and_keeps_what_it_has(process: Process) -> None:
    process.told(limits=RecordingLimits(Level.STEPS, 0.001, 10))
    await record(process, 2)
    while process.recorder is not None:
        await asyncio.sleep(0.001)
    process.told(is_over=True)
    assert [len(part.spans) for part in await process.handed_over()] == [2]


async def test_an_end_that_takes_time_is_waited_for(process: Process) -> None:
    process.ends_at_once = False
    process.told()
    await record(process, 1)
    process.told(is_over=True)
    assert process.parts() == []
    process.endings[0]()
    assert [len(part.spans) for part in await process.handed_over()] == [1]


async def test_what_is_forgotten_is_not_sent(process: Process) -> None:
    process.ends_at_once = False
    process.told()
    process.member.forget()
    process.told("b")
    process.endings[0]()
    assert process.parts() == []


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"id": ""}, "recording.id"),
        ({"level": 0}, "recording.level"),
        ({"max_milliseconds": 0}, "recording.max_milliseconds"),
        ({"max_milliseconds": 600_001}, "recording.max_milliseconds: 600001, must be from 1 to 600000"),
        ({"max_spans": 0}, "recording.max_spans"),
        ({"max_spans": 1_000_001}, "recording.max_spans"),
    ],
)
async def test_what_makes_no_sense_is_refused(process: Process, fields: dict[str, int], complaint: str) -> None:
    recording = encode_recording("a", LIMITS)
    recording.MergeFrom(pb.Recording(**{name: value for name, value in fields.items() if value}))
    for name, value in fields.items():
        if not value:
            recording.ClearField(name)
    with pytest.raises(FrameError, match=complaint.replace("(", "\\(")):
        process.member.told(recording)
    assert process.recorder is None


async def test_what_was_sent_over_a_broken_stream_is_sent_again(process: Process) -> None:
    process.told()
    await record(process, 3)
    for num_times in (1, 2):
        process.told(is_over=True)
        assert [len(part.spans) for part in await process.handed_over(num_times)] == [3]


async def test_asked_again_in_the_middle_of_sending_it_begins_anew(process: Process) -> None:
    process.told()
    await record(process, 4001)
    process.told(is_over=True)
    while not process.num_ready:
        await asyncio.sleep(0)
    process.member.next_part()
    process.told(is_over=True)
    assert process.parts() == []  # the rest of the first time would stand before all of it
    assert [len(part.spans) for part in await process.handed_over(num_times=2)] == [2000, 2000, 1]


async def test_asked_again_while_it_is_encoded_it_sends_all_of_it_once(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = [threading.Event(), threading.Event()]
    gates = iter(opened)

    def held_up(recorder: SpanRecorder) -> Iterator[pb.Spans]:
        next(gates).wait(10)
        yield from encode_spans(recorder)

    monkeypatch.setattr(member, "encode_spans", held_up)
    process.told()
    await record(process, 3)
    for _ in opened:
        process.told(is_over=True)
        await asyncio.sleep(0.01)  # a thread begins
    for gate in opened:
        gate.set()
        await asyncio.sleep(0.01)  # its parts come, if anybody waits for them
    assert [len(part.spans) for part in await process.handed_over()] == [3]
    assert process.num_ready == 1


async def test_what_is_asked_for_is_encoded_on_another_thread(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded_on: list[str] = []

    def noted(recorder: SpanRecorder) -> Iterator[pb.Spans]:
        encoded_on.append(threading.current_thread().name)
        yield from encode_spans(recorder)

    monkeypatch.setattr(member, "encode_spans", noted)
    process.told()
    await record(process, 1)
    process.told(is_over=True)
    assert [len(part.spans) for part in await process.handed_over()] == [1]
    assert encoded_on and threading.current_thread().name not in encoded_on


async def test_what_is_forgotten_while_it_is_encoded_is_not_sent(process: Process) -> None:
    process.told()
    process.told(is_over=True)
    process.member.forget()
    await asyncio.sleep(0.01)
    assert (process.num_ready, process.parts()) == (0, [])


async def test_what_nobody_asks_for_is_forgotten() -> None:
    process = Process(keep_seconds=0.001)
    process.told(limits=RecordingLimits(Level.STEPS, 0.001, 10))
    kept = weakref.ref(process.recorder)
    while kept() is not None:
        await asyncio.sleep(0.001)
    process.told(is_over=True)
    assert "knows nothing" in process.parts()[0].notes[0]
