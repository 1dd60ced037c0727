"""Health of the assembled control plane."""

import asyncio
import threading
from pathlib import Path

import pytest
from fakes.worker.fake_worker import FakeWorker
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.probing import status_and_line
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


async def probes(server: RunningControlPlane) -> dict[str, tuple[int, str]]:
    """Status and line of each probe over HTTP."""
    urls = {name: f"http://127.0.0.1:{server.plane.ports['metrics']}/{name}" for name in ("startupz", "livez", "readyz")}
    return {name: await asyncio.to_thread(status_and_line, url) for name, url in urls.items()}


async def answer(server: RunningControlPlane) -> str:
    spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=[96]), stopping=pb.StoppingParams(max_tokens=5))
    return (await server.stub.Generate(pb.GenerateRequest(spec=spec))).choices[0].text


async def test_ops_01_health_follows_the_worker(model: Path, worker: FakeWorker) -> None:
    await worker.kill()
    async with running(model, "--worker", worker.address) as server:
        await server.health_becomes(NOT_SERVING)
        assert await levels(server) == (True, False, False)
        assert await probes(server) == {"startupz": (200, "ok"), "livez": (200, "ok"), "readyz": (503, "no worker is in session")}
        for _ in range(2):
            await worker.start()
            await server.health_becomes(SERVING)
            assert await levels(server) == (True, True, True)
            assert set((await probes(server)).values()) == {(200, "ok")}
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
            found = await probes(server)
            assert found["startupz"] == (200, "ok") and found["livez"][0] == found["readyz"][0] == 503
            assert found["livez"][1].startswith("the engine's event loop has not turned for ")
        finally:
            release.set()
        await blocked
        await server.health_becomes(SERVING)
        assert await answer(server) == "abcde"


async def test_a_blocked_clients_loop_is_seen_from_outside(model: Path, worker: FakeWorker) -> None:
    async with running(model, "--worker", worker.address) as server:
        await server.health_becomes(SERVING)
        port = server.plane.ports["metrics"]
        asking = threading.Timer(2.0, lambda: found.append(status_and_line(f"http://127.0.0.1:{port}/livez")))
        found: list[tuple[int, str]] = []
        asking.start()
        asking.join()  # on the loop itself, which does not turn meanwhile
        ((status, line),) = found
        assert status == 503 and line.startswith("the clients' event loop has not turned for ")


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
        server.plane.front_end._server.drain()
        assert (await probes(server))["readyz"] == (503, "draining") and (await probes(server))["livez"] == (200, "ok")
        server.stop.request_stop()
        assert (await watch.read()).status == NOT_SERVING
        assert await server.task == 0
        for channel in server.channels:
            await channel.close()
