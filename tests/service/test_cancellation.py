"""Calls that end while their prompt is computed."""

import asyncio
from pathlib import Path

import pytest
from harness.service import Service, scripted_service
from harness.waiting import until

from clients.request import Request, generation_spec
from pypto_serving.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CHUNK, _NUM_CHUNKS = 8, 10


def num_chunks(service: Service) -> int:
    """Steps that the worker was given since the long prompt came to it."""
    return len(service.worker.steps) - next(i for i, step in enumerate(service.worker.steps) if step.admissions)


@pytest.mark.parametrize("in_step", [True, False], ids=["in a step", "between two steps"])
async def test_can_02_cancelled_in_the_middle_of_a_prefill(scripted_model: Path, in_step: bool) -> None:
    flags = ("--max-num-seqs", "1", "--max-step-tokens", str(_CHUNK), "--steps-in-flight", "1")
    async with scripted_service(scripted_model, *flags, step_seconds=0.03) as service:
        prompt = [97 + index % 26 for index in range(_CHUNK * _NUM_CHUNKS - 1)] + [ord(":")]
        call = service.stub.GenerateStream(pb.GenerateStreamRequest(spec=generation_spec(Request(token_ids=prompt, max_tokens=40))))
        await until(lambda: service.num_admissions)
        behind = asyncio.ensure_future(service.unary("x:", max_tokens=2))
        await until(lambda: num_chunks(service) >= 4)
        # A step has just been given; half of its time later it runs, and just before the next one comes it is done.
        await asyncio.sleep(0.015 if in_step else 0.0)
        call.cancel()
        num_steps = len(service.worker.steps)
        assert (await behind).text == "zz"
        # The cancelled one is released, and the one that waited is admitted, in one of the next two steps.
        steps = service.worker.steps[num_steps : num_steps + 2]
        assert any(step.released_lanes for step in steps) and any(step.admissions for step in steps)
        await service.until_at_rest()
        assert service.num_ended("cancelled") == 1
        answer = await service.unary(token_ids=prompt, max_tokens=3)
        assert (answer.text, answer.usage.prompt_tokens) == ("zzz", len(prompt))
        assert 0 < answer.usage.cached_tokens <= 5 * _CHUNK
