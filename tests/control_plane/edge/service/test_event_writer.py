"""Writing to a client, with patience."""

import asyncio

from control_plane.edge.service.responses import EventWriter
from pypto_serving.inference.v1 import inference_pb2

EVENT = inference_pb2.GenerateStreamResponse()


class Client:
    """Takes events while `reads` is set."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.num_events = 0

    async def write(self, event: inference_pb2.GenerateStreamResponse) -> None:
        await self.reads.wait()
        self.num_events += 1


async def test_a_write_that_waits_too_long_is_told_once() -> None:
    client, given_up = Client(), asyncio.Event()
    writer = EventWriter(client, 0.02, given_up.set)
    with writer.watched():
        write = asyncio.ensure_future(writer.write(EVENT))
        await given_up.wait()
        write.cancel()


async def test_a_stream_without_anything_to_write_is_left_alone() -> None:
    client, given_up = Client(), asyncio.Event()
    client.reads.set()
    writer = EventWriter(client, 0.01, given_up.set)
    with writer.watched():
        for _ in range(3):
            await writer.write(EVENT)
            await asyncio.sleep(0.03)
    await asyncio.sleep(0.03)
    assert (client.num_events, given_up.is_set()) == (3, False)


async def test_a_client_that_takes_an_event_now_and_then_is_kept() -> None:
    client, given_up = Client(), asyncio.Event()
    writer = EventWriter(client, 0.3, given_up.set)
    with writer.watched():
        for _ in range(5):  # half a second in all
            write = asyncio.ensure_future(writer.write(EVENT))
            await asyncio.sleep(0.1)
            client.reads.set()
            await write
            client.reads.clear()
    assert (client.num_events, given_up.is_set()) == (5, False)


async def test_the_time_counts_from_the_write_that_waits() -> None:
    client, given_up = Client(), asyncio.Event()
    client.reads.set()
    writer = EventWriter(client, 0.05, given_up.set)
    with writer.watched():
        await asyncio.sleep(0.04)
        await writer.write(EVENT)
        client.reads.clear()
        began = asyncio.get_running_loop().time()
        write = asyncio.ensure_future(writer.write(EVENT))
        await given_up.wait()
        assert asyncio.get_running_loop().time() - began >= 0.049
        write.cancel()
