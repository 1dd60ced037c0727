"""Prompts that take long to read hold nobody else up."""

import asyncio

import grpc
import pytest
from fakes.control_plane.scripted_engine import ScriptedControlPlane, scripted_control_plane, served_model
from fakes.text.tokenizers import BlockedTokenizer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pypto_serving.inference.v1 import inference_pb2 as pb

FIVE_MB = "x" * 5_000_000


async def is_serving(plane: ScriptedControlPlane) -> bool:
    answer = await health_pb2_grpc.HealthStub(plane.channel).Check(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def status_of(call: asyncio.Future[object]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


@pytest.mark.parametrize("kind", ["text", "chat"])
async def test_rpc_08_health_and_streams_go_on_beside_large_prompts(kind: str) -> None:
    tokenizer = BlockedTokenizer()
    prompt = {"text": FIVE_MB} if kind == "text" else {"chat": pb.Chat(messages=[pb.ChatMessage(role="user", content=FIVE_MB)])}
    async with scripted_control_plane(script=[*b"hello"] * 5, model=served_model(tokenizer=tokenizer)) as plane:
        plane.join_worker(max_model_len=1_000_000)
        plane.engine.gate.clear()
        stopping = pb.StoppingParams(max_tokens=25)
        streams = [asyncio.ensure_future(plane.events(text="Hi", stopping=stopping)) for _ in range(8)]
        while len(plane.engine.submitted) < 8:
            await asyncio.sleep(0.005)
        large = [asyncio.ensure_future(plane.generate(**prompt)) for _ in range(20)]
        while not tokenizer.num_long_texts:
            await asyncio.sleep(0.005)
        plane.engine.gate.set()
        for stream in streams:
            assert await is_serving(plane)
            assert (await stream)[-1].finished.usage.completion_tokens == 25
        assert (await plane.generate(text="Hi", stopping=stopping)).usage.completion_tokens == 25
        assert not any(call.done() for call in large)
        tokenizer.go_on.set()
        for call in large:
            assert await status_of(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert len(plane.engine.submitted) == 9
