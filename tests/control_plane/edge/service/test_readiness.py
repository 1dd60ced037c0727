"""Three levels of health: the process lives, a worker works, a request would succeed."""

import logging
from dataclasses import replace

import grpc
import pytest
from fakes.control_plane.scripted_engine import ScriptedControlPlane, scripted_control_plane
from grpc_health.v1 import health_pb2, health_pb2_grpc

from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.edge.service.readiness import DEVICE, LIVENESS, Readiness
from control_plane.engine.snapshot import EngineSnapshot, WorkerSnapshot
from pypto_serving.process.health import HealthService

SERVICE = "pypto_serving.inference.v1.InferenceService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
WITH_WORKER = EngineSnapshot(workers=(WorkerSnapshot("w:1", "i", 1, "n", 0, 0, 0, 0, None),), max_model_len=64)


class Signs:
    """An engine as it looks from outside."""

    def __init__(self) -> None:
        self.snapshot = EngineSnapshot()
        self.lag_seconds = 0.0

    def seconds_since_turn(self) -> float:
        return self.lag_seconds

    def join_worker(self) -> None:
        self.snapshot = WITH_WORKER


class Health(HealthService):
    """The health service, looked at from inside."""

    def __init__(self) -> None:
        super().__init__()
        self.num_changes = 0

    def set(self, service: str, is_serving: bool) -> None:
        changed = self._changed
        super().set(service, is_serving)
        self.num_changes += changed is not self._changed

    @property
    def levels(self) -> tuple[bool, bool, bool]:
        """Liveness, device, readiness."""
        assert self._is_serving[""] is self._is_serving[SERVICE]
        return tuple(self._is_serving[name] for name in (LIVENESS, DEVICE, ""))


@pytest.fixture
async def health() -> Health:
    return Health()


@pytest.fixture
async def readiness(health: Health) -> Readiness:
    return Readiness(health, (SERVICE,), ContextLimit(5.0, 2).set)


async def test_ops_01_levels_follow_worker_and_engine(health: Health, readiness: Readiness) -> None:
    signs = Signs()
    assert health.levels == (True, False, False)
    readiness.update(signs)
    assert health.levels == (True, False, False)
    signs.join_worker()
    readiness.update(signs)
    assert health.levels == (True, True, True)
    signs.snapshot = replace(signs.snapshot, healthy=False)
    readiness.update(signs)
    assert health.levels == (True, True, False)


async def test_an_engine_that_does_not_turn_is_stuck_at_the_second_look(health: Health, readiness: Readiness) -> None:
    signs = Signs()
    signs.join_worker()
    signs.lag_seconds = 1.6
    readiness.update(signs)  # perhaps the whole process was stopped for a while
    assert health.levels == (True, True, True)
    readiness.update(signs)
    assert health.levels == (False, False, False)
    signs.lag_seconds = 0.0
    readiness.update(signs)
    assert health.levels == (True, True, True)


async def test_a_drain_ends_readiness_for_good_and_nothing_else(health: Health, readiness: Readiness) -> None:
    signs = Signs()
    signs.join_worker()
    readiness.update(signs)
    readiness.drain()
    assert health.levels == (True, True, False)
    readiness.update(signs)
    assert health.levels == (True, True, False)


async def test_only_changes_are_told(health: Health, readiness: Readiness) -> None:
    signs = Signs()
    num_changes = health.num_changes
    for _ in range(3):
        readiness.update(signs)
    assert health.num_changes == num_changes


async def test_every_change_but_a_start_and_a_drain_is_logged(readiness: Readiness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    signs = Signs()
    silent = EngineSnapshot(trouble="nobody knows")
    for snapshot in (silent, WITH_WORKER, WITH_WORKER, replace(WITH_WORKER, healthy=False), EngineSnapshot(), silent, WITH_WORKER):
        signs.snapshot = snapshot
        readiness.update(signs)
    readiness.drain()
    signs.snapshot = EngineSnapshot()
    readiness.update(signs)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "ready"),
        ("WARNING", "not ready: the engine has had no clean pass since an unexpected error, which the log has"),
        ("WARNING", "not ready: no worker is in session"),
        ("WARNING", "not ready: nobody knows"),
        ("INFO", "ready"),
    ]


def watch(plane: ScriptedControlPlane, service: str = SERVICE) -> grpc.aio.UnaryStreamCall:
    return health_pb2_grpc.HealthStub(plane.channel).Watch(health_pb2.HealthCheckRequest(service=service))


async def test_ops_02_watchers_see_every_change_once() -> None:
    async with scripted_control_plane(has_worker=False) as plane:
        first = watch(plane)
        assert (await first.read()).status == NOT_SERVING
        plane.join_worker()
        assert (await first.read()).status == SERVING
        second, leaver = watch(plane), watch(plane)
        assert (await second.read()).status == (await leaver.read()).status == SERVING
        leaver.cancel()
        plane.engine.snapshot = EngineSnapshot()
        assert (await first.read()).status == (await second.read()).status == NOT_SERVING
        plane.join_worker()
        assert (await first.read()).status == (await second.read()).status == SERVING
        plane.server.drain()
        assert (await first.read()).status == (await second.read()).status == NOT_SERVING


async def test_ops_01_an_unknown_name_is_not_found_and_may_be_watched() -> None:
    async with scripted_control_plane() as plane:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(plane.channel).Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await watch(plane, "nobody").read()).status == UNKNOWN
