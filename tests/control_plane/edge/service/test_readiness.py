"""Three levels of health: the process lives, a worker works, a request would succeed."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from fakes.engine import FakeControlPlane, fake_control_plane
from grpc_health.v1 import health_pb2, health_pb2_grpc

from control_plane.edge.service.context_limit import ContextLimit
from control_plane.edge.service.readiness import DEVICE, LIVENESS, Readiness
from control_plane.engine.metrics_port import EngineGauges, WorkerGauges

SERVICE = "pypto_serving.inference.v1.InferenceService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Signs:
    """An engine as it looks from outside."""

    def __init__(self) -> None:
        self.gauges = EngineGauges()
        self.lag_seconds = 0.0

    def seconds_since_turn(self) -> float:
        return self.lag_seconds

    def join_worker(self) -> None:
        self.gauges = EngineGauges(workers=(WorkerGauges("w:1", "i", 1, "n", 0, 0, 0, 0, None),), max_model_len=64)


class States:
    """Keeps what the health service is told."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.changes: list[tuple[str, int]] = []

    async def set(self, service: str, status: int) -> None:
        self.now[service] = status
        self.changes.append((service, status))

    @property
    def levels(self) -> tuple[bool, bool, bool]:
        """Liveness, device, readiness."""
        assert self.now[""] == self.now[SERVICE]
        return tuple(self.now[name] == SERVING for name in (LIVENESS, DEVICE, ""))


@pytest.fixture
async def states() -> States:
    return States()


@pytest.fixture
async def readiness(states: States) -> Readiness:
    readiness = Readiness(states, (SERVICE,), ContextLimit(5.0, 2))
    await readiness.start()
    return readiness


async def test_ops_01_levels_follow_worker_and_engine(states: States, readiness: Readiness) -> None:
    signs = Signs()
    assert states.levels == (True, False, False)
    await readiness.look(signs)
    assert states.levels == (True, False, False)
    signs.join_worker()
    await readiness.look(signs)
    assert states.levels == (True, True, True)
    signs.gauges = replace(signs.gauges, healthy=False)
    await readiness.look(signs)
    assert states.levels == (True, True, False)


async def test_an_engine_that_does_not_turn_is_stuck_at_the_second_look(states: States, readiness: Readiness) -> None:
    signs = Signs()
    signs.join_worker()
    signs.lag_seconds = 1.6
    await readiness.look(signs)  # perhaps the whole process was stopped for a while
    assert states.levels == (True, True, True)
    await readiness.look(signs)
    assert states.levels == (False, False, False)
    signs.lag_seconds = 0.0
    await readiness.look(signs)
    assert states.levels == (True, True, True)


async def test_a_drain_ends_readiness_for_good_and_nothing_else(states: States, readiness: Readiness) -> None:
    signs = Signs()
    signs.join_worker()
    await readiness.look(signs)
    await readiness.drain()
    assert states.levels == (True, True, False)
    await readiness.look(signs)
    assert states.levels == (True, True, False)


async def test_only_changes_are_told(states: States, readiness: Readiness) -> None:
    signs = Signs()
    num_changes = len(states.changes)
    for _ in range(3):
        await readiness.look(signs)
    assert len(states.changes) == num_changes


def watch(plane: FakeControlPlane, service: str = SERVICE) -> grpc.aio.UnaryStreamCall:
    return health_pb2_grpc.HealthStub(plane.channel).Watch(health_pb2.HealthCheckRequest(service=service))


async def test_ops_02_watchers_see_every_change_once() -> None:
    async with fake_control_plane(has_worker=False) as plane:
        first = watch(plane)
        assert (await first.read()).status == NOT_SERVING
        plane.join_worker()
        assert (await first.read()).status == SERVING
        second, leaver = watch(plane), watch(plane)
        assert (await second.read()).status == (await leaver.read()).status == SERVING
        leaver.cancel()
        plane.gauges = EngineGauges()
        assert (await first.read()).status == (await second.read()).status == NOT_SERVING
        plane.join_worker()
        assert (await first.read()).status == (await second.read()).status == SERVING
        await plane.server.drain()
        assert (await first.read()).status == (await second.read()).status == NOT_SERVING


async def test_ops_02_a_watcher_that_leaves_leaks_nothing() -> None:
    async with fake_control_plane() as plane:
        num_tasks = len(asyncio.all_tasks())
        for _ in range(20):
            watcher = watch(plane)
            await watcher.read()
            watcher.cancel()
        while len(asyncio.all_tasks()) > num_tasks:
            await asyncio.sleep(0.005)
        assert dict(plane.server._health._server_watchers) == {}


async def test_ops_01_an_unknown_name_is_not_found_and_may_be_watched() -> None:
    async with fake_control_plane() as plane:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(plane.channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await watch(plane, "nobody").read()).status == UNKNOWN
