"""Large messages on the way from a client through the control plane to a worker, and back."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from fakes.text.model_directory import write_model_directory
from fakes.worker.fake_worker import FakeWorker, FakeWorkerOptions
from grpc_health.v1 import health_pb2
from harness.running_control_plane import RunningControlPlane, running

from control_plane.edge.client_server import MAX_REQUEST_BYTES
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc
from pypto_serving.wire.fingerprint import fingerprint_model

NUM_PROMPT_TOKENS = 8000


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RunningControlPlane]:
    model = write_model_directory(tmp_path / "model")
    sizes = {"max_model_len": 8192, "max_step_tokens": 4096, "num_pages": 520, "page_tokens": 16}
    worker = FakeWorker(FakeWorkerOptions(vocab_size=320, model_fingerprint=fingerprint_model(model), **sizes))
    await worker.start()
    async with running(model, "--worker", worker.address, "--max-step-tokens", "4096") as server:
        await server.health_becomes(health_pb2.HealthCheckResponse.SERVING)
        yield server
    await worker.stop()


@pytest.mark.parametrize("prompt", ["text", "ids"])
async def test_rpc_02_prompts_above_4_mib_are_judged_by_their_tokens(server: RunningControlPlane, prompt: str) -> None:
    text, ids = "x" * 6_000_000, pb.TokenIds(ids=[300] * 2_200_000)
    spec = pb.GenerationSpec(text=text) if prompt == "text" else pb.GenerationSpec(token_ids=ids)
    assert spec.ByteSize() > 4 * 1024 * 1024
    stub = inference_pb2_grpc.InferenceServiceStub(server.channel())
    with pytest.raises(grpc.aio.AioRpcError, match=r"may have.* 8192") as refused:
        await stub.Generate(pb.GenerateRequest(spec=spec))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_rpc_02_a_message_above_the_limit_is_refused_and_the_channel_stays(server: RunningControlPlane) -> None:
    stub = inference_pb2_grpc.InferenceServiceStub(server.channel())
    with pytest.raises(grpc.aio.AioRpcError, match=f"larger than max.*{MAX_REQUEST_BYTES}") as refused:
        await stub.Generate(pb.GenerateRequest(spec=pb.GenerationSpec(text="x" * MAX_REQUEST_BYTES)))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    spec = pb.GenerationSpec(text="x", stopping=pb.StoppingParams(max_tokens=1))
    assert len((await stub.Generate(pb.GenerateRequest(spec=spec))).choices) == 1


@pytest.mark.parametrize("way", ["unary", "stream"])
async def test_rpc_03_log_probabilities_of_a_long_prompt_arrive(server: RunningControlPlane, way: str) -> None:
    output = pb.OutputOptions(prompt_logprobs=20)
    spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=[97] * NUM_PROMPT_TOKENS), output=output, stopping=pb.StoppingParams(max_tokens=1))
    stub = inference_pb2_grpc.InferenceServiceStub(server.channel())  # a client that knows nothing of our sizes
    if way == "unary":
        response = await stub.Generate(pb.GenerateRequest(spec=spec))
        entries = list(response.prompt_logprobs)
    else:
        events = [event async for event in stub.GenerateStream(pb.GenerateStreamRequest(spec=spec))]
        entries = [entry for event in events for entry in event.prompt_logprobs.entries]
    assert (len(entries), {len(entry.top) for entry in entries[1:]}) == (NUM_PROMPT_TOKENS, {20})
