"""What operators see and do."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from fakes.text.model_directory import write_model_directory
from fakes.worker.fake_worker import FakeWorker, FakeWorkerOptions
from grpc_health.v1 import health_pb2
from harness.running_control_plane import RunningControlPlane, running
from harness.waiting import until_first_token

from control_plane.edge.engine_thread import EngineThread
from control_plane.edge.service import admin_service
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.wire.fingerprint import fingerprint_model

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model_directory(tmp_path / "model")


@pytest.fixture
async def worker(model: Path) -> AsyncIterator[FakeWorker]:
    worker = FakeWorker(FakeWorkerOptions(vocab_size=320, max_model_len=64, model_fingerprint=fingerprint_model(model)))
    await worker.start()
    yield worker
    await worker.stop()


def admin(server: RunningControlPlane) -> admin_pb2_grpc.AdminServiceStub:
    return admin_pb2_grpc.AdminServiceStub(server.channel("admin"))


def stream(server: RunningControlPlane, request_id: str) -> grpc.aio.UnaryStreamCall:
    prompt = pb.TokenIds(ids=[96, 97])
    spec = pb.GenerationSpec(token_ids=prompt, stopping=pb.StoppingParams(max_tokens=50), request_id=request_id)
    return server.stub.GenerateStream(pb.GenerateStreamRequest(spec=spec))


async def test_the_state_shows_workers_links_and_sequences(model: Path, worker: FakeWorker) -> None:
    worker.options = replace(worker.options, step_seconds=0.05)
    flags = ("--worker", worker.address, "--worker", "127.0.0.1:1", "--max-num-seqs", "1")
    async with running(model, *flags) as server:
        await server.health_becomes(SERVING)
        first = stream(server, "first")
        await until_first_token(first)
        second = stream(server, "second")
        await second.read()
        state = await admin(server).GetState(admin_pb2.GetStateRequest(with_sequences=True))
        (seen,) = state.workers
        assert (seen.address, seen.epoch, seen.num_running, state.num_waiting, state.num_calls) == (worker.address, 1, 1, 1, 2)
        links = {link.address: (link.phase, bool(link.trouble)) for link in state.links}
        assert links[worker.address] == (admin_pb2.LINK_PHASE_IN_SESSION, False)
        assert links["127.0.0.1:1"] == (admin_pb2.LINK_PHASE_CONNECTING, True)
        sequences = {sequence.request_id: sequence for sequence in state.sequences}
        assert (sequences["first"].worker, sequences["second"].worker) == (worker.address, "")
        assert sequences["first"].queue_seconds < sequences["first"].age_seconds
        assert sequences["second"].queue_seconds == pytest.approx(sequences["second"].age_seconds)


async def test_token_ids_are_shown_only_when_they_are_asked_for(model: Path, worker: FakeWorker) -> None:
    worker.options = replace(worker.options, step_seconds=0.05)
    async with running(model, "--worker", worker.address) as server:
        await server.health_becomes(SERVING)
        call = stream(server, "first")
        await until_first_token(call)
        (sequence,) = (await admin(server).GetState(admin_pb2.GetStateRequest(with_sequences=True))).sequences
        assert list(sequence.token_ids) == []
        (sequence,) = (await admin(server).GetState(admin_pb2.GetStateRequest(with_sequences=True, with_token_ids=True))).sequences
        assert list(sequence.token_ids)[:3] == [96, 97, 98]


async def test_the_prefix_cache_can_be_forgotten(model: Path, worker: FakeWorker) -> None:
    async with running(model, "--worker", worker.address) as server:
        await server.health_becomes(SERVING)
        async for _ in stream(server, "first"):
            pass
        assert (await admin(server).ResetPrefixCache(admin_pb2.ResetPrefixCacheRequest())).num_pages > 0
        assert (await admin(server).GetState(admin_pb2.GetStateRequest())).workers[0].pages.cached == 0


async def test_requests_that_wait_for_the_first_worker_are_counted(model: Path) -> None:
    async with running(model) as server:
        call = stream(server, "first")
        while not (await admin(server).GetState(admin_pb2.GetStateRequest())).num_held_back:
            await asyncio.sleep(0.01)
        call.cancel()


async def test_an_engine_that_does_not_answer_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_service, "_ENGINE_SECONDS", 0.05)
    async with running(model) as server:
        with monkeypatch.context() as patch:
            patch.setattr(EngineThread, "_soon", lambda engine, function: None)
            with pytest.raises(grpc.aio.AioRpcError, match="not answered") as caught:
                await admin(server).GetState(admin_pb2.GetStateRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
