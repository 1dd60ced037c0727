"""Output on its way to one call."""

import asyncio

import pytest
from fakes.control_plane.stream_doubles import end_of, make_output, make_stream

from control_plane.edge.service.errors import Aborted, Cancelled
from control_plane.edge.service.request_stream import RequestStream
from control_plane.engine.ports import Failure, RequestFailed

LOST = RequestFailed("x", Failure.ABORTED, "lost three workers")


def put(stream: RequestStream, *token_ids: int) -> None:
    stream.choices[0].token_ids.extend(token_ids)
    stream.let_go()


def taken(stream: RequestStream) -> list[int]:
    return [token_id for choice in stream.choices for token_id in getattr(choice.take(1, 100), "token_ids", ())]


async def test_output_piles_up_while_the_call_is_slow_and_is_there_once() -> None:
    stream = make_stream(make_output())
    put(stream, 0, 1)
    put(stream, 2)
    stream.finish(stream.choices[0], end_of())
    stream.let_go()
    assert await stream.wait_output()
    assert taken(stream) == [0, 1, 2]
    assert not await stream.wait_output()


async def test_the_end_is_waited_for() -> None:
    stream = make_stream(make_output())
    whole = asyncio.ensure_future(stream.wait_end())
    put(stream, 0)
    await asyncio.sleep(0)
    assert not whole.done()
    stream.finish(stream.choices[0], end_of())
    await whole


async def test_tokens_count_until_they_are_written() -> None:
    stream = make_stream(make_output())
    put(stream, *range(5))
    stream.choices[0].take(3, 3)
    stream.mark_in_write(3)
    put(stream, 5)
    stream.count_unwritten()
    assert stream.backlog.num_tokens == 6
    stream.mark_in_write(0)  # the others are gathered for a larger message
    assert stream.backlog.num_tokens == 3


async def test_tokens_on_their_way_are_counted_when_more_comes_before_they_have_gone() -> None:
    stream = make_stream(make_output())
    put(stream, 0, 1)
    stream.choices[0].take(1, 2)
    stream.mark_in_write(2)
    assert stream.backlog.num_tokens == 0
    put(stream, 2)
    stream.count_unwritten()
    assert stream.backlog.num_tokens == 3
    stream.mark_in_write(0)
    assert stream.backlog.num_tokens == 1


async def test_a_failure_is_raised_to_the_call() -> None:
    stream = make_stream(make_output())
    stream.fail(LOST)
    with pytest.raises(Aborted, match="three workers"):
        await stream.wait_accepted()
    with pytest.raises(Aborted, match="three workers"):
        await stream.wait_output()


async def test_output_before_a_failure_is_not_lost() -> None:
    stream = make_stream(make_output())
    stream.accept()
    put(stream, 0, 1)
    stream.fail(LOST)
    stream.let_go()
    await stream.wait_accepted()
    assert await stream.wait_output()
    assert taken(stream) == [0, 1]
    with pytest.raises(Aborted, match="three workers"):
        await stream.wait_output()


async def test_a_request_without_choices_ends_when_it_is_accepted() -> None:
    ended = make_output()
    ended.finish(end_of())
    stream = make_stream()
    stream.choices = [ended]
    stream.accept()
    stream.let_go()
    await stream.wait_end()
    assert await stream.wait_output()
    assert ended.take_end() is not None
    assert not await stream.wait_output()


async def test_an_interrupt_waits_for_the_block_that_it_may_end() -> None:
    stream = make_stream(make_output())
    stream.interrupt(Cancelled("taken over"))
    await asyncio.sleep(0)
    with pytest.raises(Cancelled, match="taken over"):
        async with stream.interruptible():
            raise AssertionError("the block has begun")
