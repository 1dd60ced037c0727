"""The assembled control plane, with a fake worker in this process."""

import asyncio
import socket
from pathlib import Path

import grpc.aio
import pytest
from fakes.worker.fake_worker import FakeWorker
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from harness.running_control_plane import SERVICE, RunningControlPlane, running

from control_plane.engine.engine import Engine
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc
from pypto_serving.process.start_up import StartUpError

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def spec(max_tokens: int = 5, **fields: object) -> pb.GenerationSpec:
    return pb.GenerationSpec(token_ids=pb.TokenIds(ids=[96]), stopping=pb.StoppingParams(max_tokens=max_tokens), **fields)


async def generate(server: RunningControlPlane, **fields: object) -> pb.GenerateResponse:
    """Ask, and again when the server says so: on a busy machine it runs late, above all while it starts."""
    stub = inference_pb2_grpc.InferenceServiceStub(server.channel())
    while True:
        try:
            return await stub.Generate(pb.GenerateRequest(spec=spec(**fields)))
        except grpc.aio.AioRpcError as error:
            retry_after_ms = dict(error.trailing_metadata()).get("retry-after-ms")
            if retry_after_ms is None:
                raise
            await asyncio.sleep(int(retry_after_ms) / 1000)


async def test_requests_that_came_before_any_worker_are_answered(model: Path, worker: FakeWorker) -> None:
    await worker.kill()
    async with running(model, "--worker", worker.address) as server:
        early = asyncio.ensure_future(generate(server))
        while not server.plane.front_end.context_limit.num_waiting:
            await asyncio.sleep(0.005)
        await worker.start()
        assert (await early).choices[0].text == "abcde"


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
        assert len((await first.stub.ListModels(pb.ListModelsRequest())).models) == 1


async def test_ops_06_a_port_that_somebody_else_has_is_told_before_the_model_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = somebody.getsockname()[1]
        with pytest.raises(StartUpError, match=str(port)):
            async with running(tmp_path, "--port", str(port)):
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
