"""Whose an id is while one request takes another over."""

import asyncio
from collections.abc import Iterator

import pytest
from fakes.control_plane.engine_doubles import make_request

from control_plane.edge.service.errors import AlreadyExists, Deadline
from control_plane.edge.service.request_streams import RequestStreams
from control_plane.engine.ports import Failure, GenerationRequest, RequestFailed


class Engine:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.submitted: list[GenerationRequest] = []

    def submit(self, request: GenerationRequest) -> None:
        self.submitted.append(request)

    def hold(self, request_id: str) -> None: ...

    def unhold(self, request_id: str) -> None: ...

    def end(self, request_id: str, failure: Failure, message: str) -> None: ...


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def streams(engine: Engine) -> RequestStreams:
    return RequestStreams(asyncio.get_running_loop(), engine)


@pytest.fixture
def tasks() -> Iterator[list[asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    for task in tasks:
        task.cancel()


async def _call(streams: RequestStreams, **fields: object) -> None:
    async with streams.open(make_request("x", **fields), Deadline(None)):
        await asyncio.Event().wait()


def _end(streams: RequestStreams) -> None:
    streams.publish([RequestFailed("x", Failure.CANCELLED, "taken over")])


async def test_a_stranger_cannot_take_an_id_between_two_take_overs(
    streams: RequestStreams, engine: Engine, tasks: list[asyncio.Task[None]]
) -> None:
    tasks.append(asyncio.create_task(_call(streams)))
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(_call(streams, takes_over=True, max_tokens=number)) for number in (1, 2)]
    await asyncio.sleep(0)
    _end(streams)
    stranger = asyncio.create_task(_call(streams, resume_key=b"another"))  # its turn comes before that of those who wait
    with pytest.raises(AlreadyExists, match="request_id 'x' is in use"):
        await stranger
    assert not streams.abort("y") and [request.max_tokens for request in engine.submitted[1:]] == [1]
    _end(streams)
    await asyncio.sleep(0.01)
    assert [request.max_tokens for request in engine.submitted[1:]] == [1, 2]


async def test_an_id_is_free_again_when_those_who_would_take_it_over_leave(
    streams: RequestStreams, engine: Engine, tasks: list[asyncio.Task[None]]
) -> None:
    tasks.append(asyncio.create_task(_call(streams)))
    await asyncio.sleep(0)
    leaving = asyncio.create_task(_call(streams, takes_over=True))
    await asyncio.sleep(0)
    _end(streams)
    asyncio.get_running_loop().call_soon(leaving.cancel)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert not streams.abort("x")
    tasks.append(asyncio.create_task(_call(streams, resume_key=b"another")))
    await asyncio.sleep(0)
    assert engine.submitted[-1].resume_key == b"another"
