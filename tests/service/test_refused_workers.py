"""Clients and operators are told of workers that will not work for a control plane."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.worker.fake_worker import FakeWorker, FakeWorkerOptions
from harness.running_control_plane import running
from harness.service import VOCAB_SIZE, scripted_service

from control_plane.edge.engine_thread import EngineThread
from control_plane.edge.service import inference_service
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.process.start_up import StartUpError


async def test_a_server_tells_which_workers_are_refused_and_why(scripted_model: Path) -> None:
    worker = FakeWorker(FakeWorkerOptions(model_fingerprint="another", vocab_size=VOCAB_SIZE))
    await worker.start()
    try:
        async with running(scripted_model, "--worker", worker.address, "--worker", "127.0.0.1:1") as server:
            stub, told = server.stub, pb.GetServerResponse()
            while not told.refused_workers:
                told = await stub.GetServer(pb.GetServerRequest())
            assert [refused.address for refused in told.refused_workers] == [worker.address] and told.num_workers == 0
            assert "model" in told.refused_workers[0].reason
    finally:
        await worker.stop()


async def test_a_server_whose_engine_does_not_answer_tells_all_else(scripted_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_service, "_ENGINE_SECONDS", 0.05)
    async with scripted_service(scripted_model) as service:
        with monkeypatch.context() as patch:
            patch.setattr(EngineThread, "_soon", lambda engine, function: None)
            told = await service.stub.GetServer(pb.GetServerRequest())
        assert told.num_workers == 1 and not told.refused_workers


async def test_a_limit_that_the_model_does_not_have_is_refused(model_with: Callable[..., Path]) -> None:
    model = model_with(config={"max_position_embeddings": 512})
    with pytest.raises(StartUpError, match=r"^--max-model-len 513: .*/config.json allows 512: lower it, or leave it out$"):
        async with running(model, "--max-model-len", "513"):
            pass


async def test_a_limit_that_a_worker_does_not_reach_is_a_warning(scripted_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with scripted_service(scripted_model, "--max-model-len", "100", max_model_len=64):
        pass
    [warning] = [record.getMessage() for record in caplog.records if "max-model-len" in record.getMessage()]
    assert warning == "--max-model-len 100 is more than this worker takes: it takes 64 tokens of a request itself"
