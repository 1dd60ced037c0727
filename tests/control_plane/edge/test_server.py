"""The assembled control plane, with a fake worker in this process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from fakes.model_directory import write_model_directory
from fakes.running_control_plane import SERVICE, RunningControlPlane, running
from fakes.worker_service import FakeWorker, FakeWorkerOptions
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from control_plane.engine.engine import Engine
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc
from pypto_serving.process.start_up import StartUpError
from pypto_serving.wire.fingerprint import fingerprint_model

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def next_letter(tokens: list[int]) -> int:
    """a, b, c, ..."""
    return ord("a") + (tokens[-1] + 1 - ord("a")) % 26


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model_directory(tmp_path / "model")


@pytest.fixture
async def worker(model: Path) -> AsyncIterator[FakeWorker]:
    options = FakeWorkerOptions(vocab_size=320, max_model_len=64, model_fingerprint=fingerprint_model(model), next_token=next_letter)
    worker = FakeWorker(options)
    await worker.start()
    yield worker
    await worker.stop()


def spec(max_tokens: int = 5, **fields: object) -> pb.GenerationSpec:
    return pb.GenerationSpec(token_ids=pb.TokenIds(ids=[96]), stopping=pb.StoppingParams(max_tokens=max_tokens), **fields)


async def generate(server: RunningControlPlane, **fields: object) -> pb.GenerateResponse:
    stub = inference_pb2_grpc.InferenceServiceStub(server.channel())
    return await stub.Generate(pb.GenerateRequest(spec=spec(**fields)))


async def test_ops_01_health_follows_the_worker(model: Path, worker: FakeWorker) -> None:
    await worker.kill()
    async with running(model, "--worker", worker.address) as server:
        await server.health_becomes(NOT_SERVING)
        for _ in range(2):
            await worker.start()
            await server.health_becomes(SERVING)
            assert (await generate(server)).choices[0].text == "abcde"
            await worker.kill()
            await server.health_becomes(NOT_SERVING)


async def test_requests_that_came_before_any_worker_are_answered(model: Path, worker: FakeWorker) -> None:
    await worker.kill()
    async with running(model, "--worker", worker.address) as server:
        early = asyncio.ensure_future(generate(server))
        while not server.plane._context_limit.num_waiting:
            await asyncio.sleep(0.005)
        await worker.start()
        assert (await early).choices[0].text == "abcde"


async def test_the_admin_service_shows_and_steers(model: Path, worker: FakeWorker) -> None:
    async with running(model, "--worker", worker.address) as server:
        await server.health_becomes(SERVING)
        await generate(server, max_tokens=20)
        admin = admin_pb2_grpc.AdminServiceStub(server.channel("admin"))
        (state,) = (await admin.GetState(admin_pb2.GetStateRequest(with_sequences=True))).workers
        assert (state.address, state.epoch, state.num_running) == (worker.address, 1, 0)
        await admin.ResetPrefixCache(admin_pb2.ResetPrefixCacheRequest())
        assert (await admin.GetState(admin_pb2.GetStateRequest())).workers[0].pages.cached == 0
        await admin.Drain(admin_pb2.DrainRequest())
        assert await server.task == 0
        for channel in server.channels:
            await channel.close()


async def test_ops_03_a_drain_lets_running_requests_finish(model: Path, worker: FakeWorker) -> None:
    worker.options = FakeWorkerOptions(**{**worker.options.__dict__, "step_seconds": 0.01})
    async with running(model, "--worker", worker.address) as server:
        await server.health_becomes(SERVING)
        stub = inference_pb2_grpc.InferenceServiceStub(server.channel())
        stream = stub.GenerateStream(pb.GenerateStreamRequest(spec=spec(max_tokens=30)))
        while (await stream.read()).WhichOneof("event") != "delta":
            pass
        server.stop.take()
        await server.health_becomes(NOT_SERVING)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(server)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        events = []
        while (event := await stream.read()) is not grpc.aio.EOF:
            events.append(event)
        assert (events[-1].finished.usage.completion_tokens, await server.task) == (30, 0)
        for channel in server.channels:
            await channel.close()


@pytest.mark.parametrize("way", ["time is over", "second signal"])
async def test_what_does_not_finish_in_a_drain_is_cut_off(model: Path, worker: FakeWorker, way: str) -> None:
    worker.options = FakeWorkerOptions(**{**worker.options.__dict__, "step_seconds": 0.3})
    async with running(model, "--worker", worker.address, "--drain-seconds", "0.1" if way == "time is over" else "30") as server:
        await server.health_becomes(SERVING)
        stub = inference_pb2_grpc.InferenceServiceStub(server.channel())
        stream = stub.GenerateStream(pb.GenerateStreamRequest(spec=spec(max_tokens=60)))
        while (await stream.read()).WhichOneof("event") != "delta":
            pass
        server.stop.take()
        if way == "second signal":
            server.stop.take()
        assert await server.task == 0
        with pytest.raises(grpc.aio.AioRpcError):
            while await stream.read() is not grpc.aio.EOF:
                pass
        for channel in server.channels:
            await channel.close()


async def test_ops_08_reflection_lists_our_service_and_health(model: Path) -> None:
    async with running(model) as server:
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel())
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        call = stub.ServerReflectionInfo(iter([request]))
        names = {service.name for service in (await call.read()).list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health"} <= names
        call.cancel()


async def test_ops_06_a_taken_port_is_one_clear_line(model: Path) -> None:
    async with running(model) as first:
        for flag, purpose in {"port": "address", "metrics-port": "metrics", "announce-port": "announce", "admin-port": "admin"}.items():
            port = first.plane.ports[purpose]
            with pytest.raises(StartUpError, match=str(port)):
                async with running(model, f"--{flag}", str(port)):
                    pass


async def test_a_broken_model_ends_the_start(model: Path) -> None:
    (model / "config.json").unlink()
    with pytest.raises(StartUpError, match=r"config\.json"):
        async with running(model):
            pass


async def test_a_failed_engine_ends_the_process_with_exit_code_1(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(engine: Engine) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Engine, "run", fail)
    async with running(model) as server:
        assert await server.task == 1


async def test_an_engine_that_fails_during_a_drain_is_not_waited_for(
    model: Path, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(engine: Engine) -> None:
        raise RuntimeError("out of luck")

    worker.options = FakeWorkerOptions(**{**worker.options.__dict__, "step_seconds": 0.05})
    async with running(model, "--worker", worker.address, "--drain-seconds", "600") as server:
        await server.health_becomes(SERVING)
        stub = inference_pb2_grpc.InferenceServiceStub(server.channel())
        stream = stub.GenerateStream(pb.GenerateStreamRequest(spec=spec(max_tokens=60)))
        while (await stream.read()).WhichOneof("event") != "delta":
            pass
        monkeypatch.setattr(Engine, "drain", lambda engine: monkeypatch.setattr(Engine, "_set_timer", fail))
        server.stop.take()
        async with asyncio.timeout(20):
            assert await server.task == 1
        for channel in server.channels:
            await channel.close()
