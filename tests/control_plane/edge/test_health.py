"""Health of the assembled control plane."""

import asyncio
import threading
from pathlib import Path

import pytest
from fakes.worker.fake_worker import FakeWorker
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.running_control_plane import RunningControlPlane, running

from control_plane.engine.engine import Engine
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2 as pb

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def levels(server: RunningControlPlane) -> tuple[bool, ...]:
    """Liveness, device, readiness."""
    stub = health_pb2_grpc.HealthStub(server.channel())
    answers = [await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in ("liveness", "device", "")]
    return tuple(answer.status == SERVING for answer in answers)


async def answer(server: RunningControlPlane) -> str:
    spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=[96]), stopping=pb.StoppingParams(max_tokens=5))
    return (await server.stub.Generate(pb.GenerateRequest(spec=spec))).choices[0].text


async def test_ops_01_health_follows_the_worker(model: Path, worker: FakeWorker) -> None:
    await worker.kill()
    async with running(model, "--worker", worker.address) as server:
        await server.health_becomes(NOT_SERVING)
        assert await levels(server) == (True, False, False)
        for _ in range(2):
            await worker.start()
            await server.health_becomes(SERVING)
            assert await levels(server) == (True, True, True)
            assert await answer(server) == "abcde"
            await worker.kill()
            await server.health_becomes(NOT_SERVING)
            assert await levels(server) == (True, False, False)


async def test_ops_01_a_blocked_engine_is_neither_ready_nor_alive_until_it_turns_again(
    model: Path, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(Engine, "reset_prefix_cache", lambda engine: int(release.wait(30)))
    async with running(model, "--worker", worker.address) as server:
        await server.health_becomes(SERVING)
        admin = admin_pb2_grpc.AdminServiceStub(server.channel("admin"))
        blocked = asyncio.ensure_future(admin.ResetPrefixCache(admin_pb2.ResetPrefixCacheRequest()))
        try:
            await server.health_becomes(NOT_SERVING)
            assert await levels(server) == (False, False, False)
        finally:
            release.set()
        await blocked
        await server.health_becomes(SERVING)
        assert await answer(server) == "abcde"


async def test_ops_02_one_watch_sees_worker_and_drain(model: Path, worker: FakeWorker) -> None:
    await worker.kill()
    async with running(model, "--worker", worker.address) as server:
        watch = health_pb2_grpc.HealthStub(server.channel()).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == NOT_SERVING
        await worker.start()
        assert (await watch.read()).status == SERVING
        await worker.kill()
        assert (await watch.read()).status == NOT_SERVING
        await worker.start()
        assert (await watch.read()).status == SERVING
        server.stop.request_stop()
        assert (await watch.read()).status == NOT_SERVING
        assert await server.task == 0
        for channel in server.channels:
            await channel.close()
