"""A resume is replayed on threads, a slice at a time; what it may cost is bounded."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from fakes.control_plane.stream_doubles import PieceText, make_output, make_request

from control_plane.edge.service.admission.replay import Replay, ResumedChoice
from control_plane.edge.service.admission.resume import Replayer, ReplayLimits
from control_plane.edge.service.errors import InvalidArgument


class CostlyText(PieceText):
    """Each token costs some seconds of the clock; notes on which thread it came, and can be made to wait there."""

    def __init__(self, clock: "CpuClock", seconds: float, before_push: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds
        self._before_push = before_push
        self.threads: list[str] = []

    def push(self, token_id: int) -> str:
        self._before_push()
        self.threads.append(threading.current_thread().name)
        self._clock.now += self._seconds
        return super().push(token_id)


class CpuClock:
    """CPU time that passes when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> CpuClock:
    return CpuClock()


@pytest.fixture
async def replayer(clock: CpuClock) -> AsyncIterator[Replayer]:
    replayer = Replayer(ReplayLimits(cpu_seconds=20.0, slice_seconds=1.0), num_threads=1, cpu_clock=clock)
    yield replayer
    replayer.close()


def resume(*texts: CostlyText, num_tokens: int) -> Replay:
    choices = [ResumedChoice(make_output(index, text), [7] * num_tokens) for index, text in enumerate(texts)]
    return Replay(make_request("r", max_tokens=10_000), choices)


async def test_no_token_is_replayed_on_an_event_loop(replayer: Replayer, clock: CpuClock) -> None:
    text = CostlyText(clock, 0.0)
    await replayer.run(resume(text, num_tokens=500))
    assert len(text.threads) == 500
    assert all(name.startswith("replay") for name in text.threads)


async def test_the_loop_turns_between_slices_and_another_resume_gets_its_turn(replayer: Replayer, clock: CpuClock) -> None:
    long, short = CostlyText(clock, 0.01), CostlyText(clock, 0.01)
    first = asyncio.create_task(replayer.run(resume(long, num_tokens=1500)))
    await asyncio.sleep(0)
    await replayer.run(resume(short, num_tokens=10))
    assert len(long.threads) < 500
    await first
    assert len(long.threads) == 1500


async def test_whoever_stops_waiting_stops_the_replay(replayer: Replayer, clock: CpuClock) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(60)

    text = CostlyText(clock, 0.01, wait)
    task = asyncio.create_task(replayer.run(resume(text, num_tokens=5000)))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await replayer.run(resume(CostlyText(clock, 0.0), num_tokens=1))  # on the same thread, behind what was begun
    assert len(text.threads) <= 112  # one slice


async def test_what_costs_too_much_is_refused_with_both_numbers(replayer: Replayer, clock: CpuClock) -> None:
    texts = [CostlyText(clock, 0.1) for _ in range(4)]
    with pytest.raises(InvalidArgument) as caught:
        await replayer.run(resume(*texts, num_tokens=100))
    assert str(caught.value) == (
        "resume.choices: 208 of 400 tokens took 20.8 s of CPU time to go through text, stop strings and constraint again, "
        "limit 20 s; start the request anew"
    )


async def test_what_needs_all_of_the_time_is_taken(replayer: Replayer, clock: CpuClock) -> None:
    replay = resume(CostlyText(clock, 0.1), num_tokens=208)
    await replayer.run(replay)
    assert (replay.is_done, replay.num_pushed_tokens) == (True, 208)
