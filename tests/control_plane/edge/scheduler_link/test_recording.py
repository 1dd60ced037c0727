"""Recordings of front ends that are processes of their own."""

import time

from fakes.control_plane.front_end_calls import make_request
from harness.waiting import until

from control_plane.edge.profiling.profiler import Profiler
from pypto_serving.recording.recorder import Level, RecordingLimits, Span, SpanRecorder

LIMITS = RecordingLimits(Level.STEPS, 60.0, 100)


class Calls:
    """What a front end records."""

    def __init__(self):
        self.recorder: SpanRecorder | None = None

    def record(self, recorder):
        self.recorder = recorder


async def in_session(make_scheduler, start_front_end):
    scheduler, calls = make_scheduler(), Calls()
    await scheduler.start()
    front_end = start_front_end(scheduler, record=calls.record)
    profiler: Profiler = scheduler.service._profiler
    await until(lambda: scheduler.service.front_ends)
    return scheduler, front_end, profiler, calls


async def test_a_front_end_records_when_the_scheduler_says_so_and_sends_it_back(make_scheduler, start_front_end):
    _, _, profiler, calls = await in_session(make_scheduler, start_front_end)
    recording_id, able, _ = profiler.start(LIMITS)
    assert able == ["scheduler", "front end front end"]
    await until(lambda: calls.recorder)
    calls.recorder.add(Span("call", "calls", "", time.monotonic_ns(), 5))
    _, told = await profiler.stop(recording_id)
    assert [span.name for part in told.parts for span in part.spans] == ["call"] and not told.notes
    assert calls.recorder is None


async def test_clocks_of_one_machine_are_found_to_be_the_same(make_scheduler, start_front_end):
    _, _, profiler, _ = await in_session(make_scheduler, start_front_end)
    [participant] = profiler._participants
    await until(participant.peer_clock.offset)
    assert participant.peer_clock.offset().nanoseconds == 0


async def test_what_is_lost_with_a_session_is_noted_and_stops(make_scheduler, start_front_end):
    scheduler, front_end, profiler, calls = await in_session(make_scheduler, start_front_end)
    profiler.start(LIMITS)
    await until(lambda: calls.recorder)
    await scheduler.kill()
    await until(lambda: calls.recorder is None)
    _, told = await profiler.stop("")
    assert "its session ended before" in told.notes[0]
    await scheduler.start()
    call = front_end.submit(make_request("r"))
    await until(lambda: call.num_accepted)


async def test_an_older_front_end_is_not_told(make_scheduler, cleanup):
    from harness.served_scheduler import RawFrontEnd

    scheduler = make_scheduler()
    await scheduler.start()
    front_end = RawFrontEnd(scheduler.address)
    cleanup.push_async_callback(front_end.close)
    await front_end.hello()
    _, able, left_out = scheduler.service._profiler.start(LIMITS)
    assert (able, left_out) == (["scheduler"], ["front end front end"])
