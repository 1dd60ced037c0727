"""The health service that all processes have, in a server of its own."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pypto_serving.process.health import HEALTH, HealthService

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING

#: A client that takes no more than a kilobyte that it does not read.
SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))


@dataclass
class Served:
    """A health service and a client of it."""

    health: HealthService
    channel: grpc.aio.Channel
    sleepy_channel: grpc.aio.Channel

    def watch(self, channel: grpc.aio.Channel | None = None) -> grpc.aio.UnaryStreamCall:
        return health_pb2_grpc.HealthStub(channel or self.channel).Watch(health_pb2.HealthCheckRequest())


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    health, server = HealthService(), grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel, grpc.aio.insecure_channel(address, options=SMALL_WINDOW) as sleepy:
        yield Served(health, channel, sleepy)
    await server.stop(None)


async def test_an_unknown_name_is_not_found_in_words(served: Served) -> None:
    served.health.set("known", True)
    with pytest.raises(grpc.aio.AioRpcError, match="service 'nobody' is unknown; there are 'known'") as caught:
        await health_pb2_grpc.HealthStub(served.channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_ops_02_a_watcher_that_does_not_read_holds_nobody_up(served: Served) -> None:
    sleeper = served.watch(served.sleepy_channel)
    await sleeper.read()
    for number in range(1000):
        served.health.set("", number % 2 == 0)
        await asyncio.sleep(0)
    served.health.set("", False)
    watcher = served.watch()
    assert (await watcher.read()).status == NOT_SERVING
    served.health.set("", True)
    assert (await watcher.read()).status == SERVING


async def test_ops_02_watchers_that_leave_leave_nothing_behind(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    num_tasks = len(asyncio.all_tasks())
    for number in range(20):
        watcher = served.watch()
        await watcher.read()
        watcher.cancel()
        served.health.set("", number % 2 == 0)
    while len(asyncio.all_tasks()) > num_tasks:
        await asyncio.sleep(0.005)
    assert not caplog.records


def test_reflection_finds_its_name() -> None:
    assert HEALTH == "grpc.health.v1.Health"
