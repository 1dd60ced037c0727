import asyncio

import pytest
from fakes.control_plane.inference_service import FakeInferenceService, FakeServer

from clients.bench.generator import Connections, LoadProcesses, OwnGenerator, open_generator
from clients.bench.load import Load
from clients.connection import Credentials
from clients.request import Request

REQUESTS = [Request(token_ids=[index], max_tokens=3) for index in range(6)]


class PeerService(FakeInferenceService):
    """Remembers the connections."""

    peers = frozenset()

    async def GenerateStream(self, request, context):
        self.peers |= {context.peer()}
        async for event in super().GenerateStream(request, context):
            yield event


@pytest.fixture
async def server():
    async with FakeServer(PeerService()) as running:
        yield running


@pytest.mark.parametrize("count", [1, 3])
async def test_requests_go_over_connections_in_turn(server, count):
    async with OwnGenerator(Connections([server.target], Credentials(), count)) as generator:
        timelines = await generator.put(Load(REQUESTS, 60.0, concurrency=6))
    assert [timeline.num_tokens for timeline in timelines] == [3] * 6
    assert len(server.service.peers) == generator.num_connections == count


async def test_timelines_of_all_processes_are_put_together(server):
    async with open_generator(Connections([server.target], Credentials(), 2), 2) as generator:
        parts = [await generator.put(load) for load in (Load(REQUESTS, 60.0, concurrency=4), Load(REQUESTS, 60.0, times=[0.0] * 6))]
    assert [len(timelines) for timelines in parts] == [6, 6]
    assert not any(timeline.failure for timelines in parts for timeline in timelines)
    assert min(timeline.lateness_seconds for timeline in parts[1]) >= 0
    assert len(server.service.seen) == 12 and len(server.service.peers) == generator.num_connections == 4


async def test_process_that_ends_is_told(server):
    server.service.gate.clear()
    processes = LoadProcesses(Connections([server.target], Credentials()), 2)
    putting = asyncio.create_task(processes.put(Load(REQUESTS, 60.0, concurrency=2)))
    while len(server.service.seen) < 2:
        await asyncio.sleep(0.01)
    processes.close()
    with pytest.raises(ChildProcessError, match="one of the --processes ended"):
        await putting
