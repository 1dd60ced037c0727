"""Who writes in which turn of the loop."""

import asyncio

import pytest
from fakes.control_plane.stream_doubles import FixedWindow, end_of, make_output, make_stream

from control_plane.edge.service.request_stream import RequestStream
from control_plane.edge.service.write_turns import WriteTurns


class NotedStream(RequestStream):
    """Notes when it is let go, by the loop's time."""

    times: list[float]

    def let_go(self) -> None:
        super().let_go()
        self.times.append(asyncio.get_running_loop().time())


def noted() -> NotedStream:
    stream = make_stream(make_output(), kind=NotedStream)
    stream.times = []
    return stream


@pytest.fixture
async def window() -> FixedWindow:
    return FixedWindow()


@pytest.fixture
async def turns(window: FixedWindow) -> WriteTurns:
    return WriteTurns(asyncio.get_running_loop(), window)


async def until_let_go(stream: NotedStream, count: int) -> None:
    while len(stream.times) < count:
        await asyncio.sleep(0)


async def test_a_turn_is_for_a_few_streams_in_the_order_in_which_they_came(turns: WriteTurns) -> None:
    streams = [noted() for _ in range(20)]
    turns.add(streams)
    done = []
    while not streams[-1].times:
        await asyncio.sleep(0)
        done.append([bool(stream.times) for stream in streams].count(True))
    assert done[-3:] == [8, 16, 20]
    assert [stream.times[0] for stream in streams] == sorted(stream.times[0] for stream in streams)


async def test_a_stream_that_waits_for_its_turn_is_let_go_once(turns: WriteTurns) -> None:
    stream = noted()
    turns.add([stream])
    turns.add([stream])
    await until_let_go(stream, 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(stream.times) == 1


async def test_output_goes_at_once_and_then_is_gathered_until_the_window_is_over(turns: WriteTurns, window: FixedWindow) -> None:
    window.window_seconds = 0.02
    stream, other = noted(), noted()
    turns.add([stream])
    await until_let_go(stream, 1)
    turns.add([stream])
    turns.add([other])  # does not wait for the windows of others
    await until_let_go(other, 1)
    assert len(stream.times) == 1
    await until_let_go(stream, 2)
    assert stream.times[1] - stream.times[0] >= 0.02


async def test_an_end_is_not_gathered(turns: WriteTurns, window: FixedWindow) -> None:
    window.window_seconds = 60.0
    stream = noted()
    turns.add([stream])
    await until_let_go(stream, 1)
    turns.add([stream])
    stream.finish(stream.choices[0], end_of())
    turns.add([stream])
    await until_let_go(stream, 2)
