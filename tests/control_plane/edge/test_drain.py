"""A control plane that is told to stop."""

import asyncio
import functools
import time
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fakes.worker.fake_worker import FakeWorker
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.running_control_plane import RunningControlPlane, running
from harness.waiting import until_first_token

from control_plane.edge.config import StreamOptions
from control_plane.edge.flags import groups
from control_plane.engine.engine import Engine
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
#: Bytes that a client takes without reading: one message.
SMALL_WINDOW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))


def spec(max_tokens: int, **fields: object) -> pb.GenerationSpec:
    return pb.GenerationSpec(token_ids=pb.TokenIds(ids=[96]), stopping=pb.StoppingParams(max_tokens=max_tokens), **fields)


def stream(channel: grpc.aio.Channel, max_tokens: int = 30, **fields: object) -> grpc.aio.UnaryStreamCall:
    request = pb.GenerateStreamRequest(spec=spec(max_tokens, **fields))
    return inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(request)


async def running_stream(server: RunningControlPlane, max_tokens: int = 30) -> grpc.aio.UnaryStreamCall:
    """A stream that has got its first token."""
    call = stream(server.channel(), max_tokens)
    await until_first_token(call)
    return call


async def rest_of(call: grpc.aio.UnaryStreamCall) -> list[pb.GenerateStreamResponse]:
    events = []
    while (event := await call.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


async def status_of(call: Awaitable[object]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def health_of(server: RunningControlPlane, service: str) -> int:
    return (await health_pb2_grpc.HealthStub(server.channel()).Check(health_pb2.HealthCheckRequest(service=service))).status


async def close(server: RunningControlPlane) -> None:
    for channel in server.channels:
        await channel.close()


def slow(worker: FakeWorker, step_seconds: float) -> None:
    worker.options = replace(worker.options, step_seconds=step_seconds)


async def drain_by_signal(server: RunningControlPlane) -> None:
    server.stop.request_stop()


async def drain_by_operator(server: RunningControlPlane) -> None:
    admin = admin_pb2_grpc.AdminServiceStub(server.channel("admin"))
    assert (await admin.Drain(admin_pb2.DrainRequest())).num_running == 5


@pytest.mark.parametrize("drain", [drain_by_signal, drain_by_operator])
async def test_ops_03_running_requests_finish_and_all_others_are_refused(model: Path, worker: FakeWorker, drain: object) -> None:
    slow(worker, 0.01)
    async with running(model, "--worker", worker.address, "--max-num-seqs", "3") as server:
        await server.health_becomes(SERVING)
        streams = [await running_stream(server, 50) for _ in range(3)]
        queued = [stream(server.channel()) for _ in range(2)]
        for call in queued:
            assert (await call.read()).HasField("started")
        await drain(server)
        for call in queued:
            assert await status_of(rest_of(call)) is grpc.StatusCode.UNAVAILABLE
        await server.health_becomes(NOT_SERVING)
        assert (await health_of(server, "liveness"), await health_of(server, "device")) == (SERVING, SERVING)
        assert (await server.stub.GetServer(pb.GetServerRequest())).draining
        assert await status_of(server.stub.Generate(pb.GenerateRequest(spec=spec(5)))) is grpc.StatusCode.UNAVAILABLE
        assert not server.task.done()
        for call in streams:
            events = await rest_of(call)
            assert events[-1].finished.usage.completion_tokens == 50
            assert len(events) > 10  # it went on token by token
        assert await server.task == 0
        await close(server)


async def test_ops_03_a_reader_that_stopped_is_not_waited_for(model: Path, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "StreamOptions", functools.partial(StreamOptions, max_unwritten_tokens=50))
    worker.options = replace(worker.options, max_model_len=1000, num_pages=300)
    await worker.kill()
    await worker.start()
    async with running(model, "--worker", worker.address, "--drain-seconds", "600") as server:
        await server.health_becomes(SERVING)
        address = f"127.0.0.1:{server.plane.ports['address']}"
        async with grpc.aio.insecure_channel(address, options=SMALL_WINDOW) as channel:
            call = stream(channel, 900)
            admin = admin_pb2_grpc.AdminServiceStub(server.channel("admin"))
            while not (await admin.GetState(admin_pb2.GetStateRequest())).num_held:
                await asyncio.sleep(0.01)
            server.stop.request_stop()
            assert await server.task == 0
            assert await status_of(rest_of(call)) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        await close(server)


async def test_requests_that_wait_for_the_first_worker_are_refused(model: Path) -> None:
    async with running(model) as server:
        waiting = asyncio.ensure_future(server.stub.Generate(pb.GenerateRequest(spec=spec(5))))
        while not server.plane.front_end.context_limit.num_waiting:
            await asyncio.sleep(0.005)
        server.stop.request_stop()
        assert (await status_of(waiting), await server.task) == (grpc.StatusCode.UNAVAILABLE, 0)
        await close(server)


async def test_calls_that_have_arrived_unseen_are_refused_and_not_dropped(model: Path) -> None:
    def ask(address: str) -> grpc.StatusCode:
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
            inference_pb2_grpc.InferenceServiceStub(channel).Generate(pb.GenerateRequest(spec=spec(5)))
        return caught.value.code()

    async with running(model) as server:
        address = f"127.0.0.1:{server.plane.ports['address']}"
        asking = [asyncio.create_task(asyncio.to_thread(ask, address)) for _ in range(4)]
        await asyncio.sleep(0.01)
        time.sleep(0.2)  # as if it were stopped by a signal
        server.stop.request_stop()
        assert await asyncio.gather(*asking) == [grpc.StatusCode.UNAVAILABLE] * 4
        assert await server.task == 0


@pytest.mark.parametrize("way", ["time is over", "second signal"])
async def test_what_does_not_finish_is_cut_off(model: Path, worker: FakeWorker, way: str) -> None:
    slow(worker, 0.3)
    async with running(model, "--worker", worker.address, "--drain-seconds", "0.1" if way == "time is over" else "30") as server:
        await server.health_becomes(SERVING)
        call = await running_stream(server, 60)
        server.stop.request_stop()
        if way == "second signal":
            server.stop.request_stop()
        assert await server.task == 0
        assert await status_of(rest_of(call)) is grpc.StatusCode.UNAVAILABLE
        await close(server)


async def test_an_engine_that_fails_meanwhile_is_not_waited_for(model: Path, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(engine: Engine) -> None:
        raise RuntimeError("out of luck")

    slow(worker, 0.05)
    async with running(model, "--worker", worker.address, "--drain-seconds", "600") as server:
        await server.health_becomes(SERVING)
        await running_stream(server, 60)
        monkeypatch.setattr(Engine, "drain", lambda engine, front_end: monkeypatch.setattr(Engine, "_set_timer", fail))
        server.stop.request_stop()
        async with asyncio.timeout(20):
            assert await server.task == 1
        await close(server)
