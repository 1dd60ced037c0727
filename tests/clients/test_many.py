import asyncio
import time
from contextlib import aclosing, closing

import grpc
import pytest
from fakes.control_plane.inference_service import StreamFault

from clients import AsyncClient, Client, Request, ServingError
from clients.many import answer_many


def requests(count, taken=None):
    for number in range(count):
        if taken is not None:
            taken.append(number)
        yield Request(f"prompt {number}", max_tokens=2)


async def of_threads(server, work):
    def run():
        with Client(server.target) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def answers(client, *args, **options):
    return [outcome async for outcome in client.generate_many(*args, **options)]


async def test_every_request_has_its_outcome(server):
    async with AsyncClient(server.target) as client:
        outcomes = await answers(client, requests(20), concurrency=3)
    assert sorted(outcome.index for outcome in outcomes) == list(range(20))
    assert all(outcome.completion.token_ids == (100, 101) for outcome in outcomes)
    assert {spec.text for spec in server.service.seen} == {f"prompt {number}" for number in range(20)}
    assert sorted(outcome.index for outcome in await of_threads(server, lambda client: list(client.generate_many(requests(20))))) == [
        *range(20)
    ]


async def test_no_more_are_taken_than_may_be_in_flight(server):
    server.service.gate.clear()
    taken = []
    async with AsyncClient(server.target) as client, aclosing(client.generate_many(requests(20, taken), concurrency=4)) as outcomes:
        first = asyncio.create_task(anext(outcomes))
        while len(server.service.seen) < 4:
            await asyncio.sleep(0.01)
        assert taken == [0, 1, 2, 3]
        server.service.gate.set()
        await first


async def test_a_request_that_fails_ends_nothing(server):
    server.service.faults.append(StreamFault(grpc.StatusCode.INVALID_ARGUMENT, None, "too long"))
    outcomes = await of_threads(
        server, lambda client: list(client.generate_many([*requests(3), Request(top_k="x", prompt="a")], concurrency=1))
    )
    assert [outcome.error and outcome.error.code.name for outcome in outcomes] == ["INVALID_ARGUMENT", None, None, "INVALID_ARGUMENT"]
    assert outcomes[0].error.message == "too long" and outcomes[0].completion is None


async def test_a_full_queue_is_tried_again(server):
    full = StreamFault(grpc.StatusCode.RESOURCE_EXHAUSTED, None, "queue full", 1)
    server.service.faults.extend([full, full])
    assert all(outcome.completion for outcome in await of_threads(server, lambda client: list(client.generate_many(requests(2)))))
    server.service.faults.extend([full, full])
    async with AsyncClient(server.target) as client:
        assert all(outcome.completion for outcome in await answers(client, requests(2)))


async def test_closing_cancels_what_is_in_flight(server):
    server.service.gate.clear()

    def in_thread():
        with Client(server.target) as client, closing(client.generate_many(_gated(server), concurrency=3)) as outcomes:
            next(outcomes)
            while len(server.service.seen) < 2:
                time.sleep(0.01)

    await asyncio.to_thread(in_thread)
    await asyncio.wait_for(server.service.cancelled.wait(), 10)


def _gated(server):
    """The first one is refused before it is sent; the others wait at the gate."""
    yield Request(top_k="x", prompt="a")
    yield from requests(2)


async def test_closing_the_client_ends_all_of_them(server):
    server.service.gate.clear()
    client = Client(server.target)
    asking = asyncio.create_task(asyncio.to_thread(lambda: list(client.generate_many(requests(5), concurrency=2))))
    while len(server.service.seen) < 2:
        await asyncio.sleep(0.01)
    client.close()
    assert {outcome.error.message for outcome in await asyncio.wait_for(asking, 10)} == {"the client was closed"}


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, "2"])
def test_a_concurrency_that_cannot_be_is_refused_at_once(concurrency, dead_target):
    with Client(dead_target) as client, pytest.raises(ServingError, match="concurrency: "):
        client.generate_many([], concurrency=concurrency)


async def test_requests_that_cannot_be_taken_leave_nothing_running():
    def failing():
        yield from requests(2)
        raise ValueError("a bad line")

    before = asyncio.all_tasks()
    with pytest.raises(ValueError, match="a bad line"):
        await anext(answer_many(lambda request, began_at: asyncio.sleep(60), failing(), 8))
    assert asyncio.all_tasks() == before


async def test_a_timeout_is_for_all_tries_together(server):
    server.service.faults.extend([StreamFault(grpc.StatusCode.RESOURCE_EXHAUSTED, None, "queue full", 150)] * 200)
    request = Request("a", timeout=0.5)
    async with AsyncClient(server.target) as client:
        (outcome,) = await asyncio.wait_for(answers(client, [request]), 20)
    (in_thread,) = await of_threads(server, lambda client: list(client.generate_many([request])))
    for error in (outcome.error, in_thread.error):
        assert (error.code.name, error.message) == ("DEADLINE_EXCEEDED", "timeout=0.5: last failure: queue full")
