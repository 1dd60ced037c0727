"""Hostile neighbours: requests that would cost the others dearly if anything let them.

Every coroutine below asks once, and holds the answer to be one that the sender deserves. The raw stubs are used where our own client
would never send such a thing.
"""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
from chaos.poisoned_worker import POISON

from clients import AsyncClient, ServingError
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1.inference_pb2_grpc import InferenceServiceStub

#: A token whose embedding is not finite; nothing draws it.
NOT_FINITE = 1001
#: What keeps a request from drawing either.
HARMLESS = {NOT_FINITE: -100.0, POISON: -100.0}
_ORDINARY_TOKENS = range(300, 900)

#: Sends one request to the control plane at an address; raises AssertionError when the answer is not what it should be.
Neighbour = Callable[[str], Awaitable[None]]


async def resume_hugely(address: str) -> None:
    """64 choices with 64 stop strings, each resumed far into its output."""
    stops = [f"never {number}" for number in range(64)]
    spec = pb.GenerationSpec(text="Once", n=64, stopping=pb.StoppingParams(max_tokens=3000, ignore_eos=True, stop=stops))
    spec.output.prompt_token_ids = True
    spec.sampling.logit_bias.update(HARMLESS)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = InferenceServiceStub(channel)
        call = stub.GenerateStream(pb.GenerateStreamRequest(spec=spec))
        started = (await call.read()).started
        call.cancel()
        draw = random.Random(1)
        choices = [pb.ResumedChoice(index=index, token_ids=draw.choices(_ORDINARY_TOKENS, k=2900)) for index in range(64)]
        resume = pb.Resume(
            key=started.resume_key,
            effective=started.effective,
            prompt_token_ids=started.prompt_token_ids,
            model_fingerprint=started.model_fingerprint,
            choices=choices,
        )
        call = stub.GenerateStream(pb.GenerateStreamRequest(spec=pb.GenerationSpec(request_id=started.request_id, resume=resume)))
        answers = [answer async for answer in call]
    assert sum(answer.HasField("finished") for answer in answers) == 64, "each choice ends"


async def constrain_hard(address: str) -> None:
    """A grammar whose masks are dear, for many choices at once."""
    schema = '{"type": "string", "minLength": 19000}'
    await _expect(address, None, prompt="Once", json_schema=schema, n=32, max_tokens=24, temperature=0.9, logit_bias=HARMLESS)


async def poison(address: str) -> None:
    """Kills every worker that computes it."""
    await _expect(address, grpc.StatusCode.ABORTED, token_ids=[*_some_tokens(40), POISON], max_tokens=8)


async def spoil(address: str) -> None:
    """A token in the middle of the prompt makes all rows from there on not finite."""
    await _expect(address, grpc.StatusCode.INTERNAL, token_ids=[*_some_tokens(40), NOT_FINITE, *_some_tokens(40)], max_tokens=8)


async def push_in(address: str) -> None:
    """Wants to be served before all others."""
    await _expect(address, grpc.StatusCode.INVALID_ARGUMENT, prompt="Once", priority=-(2**31), max_tokens=8)


async def ask_for_everything(address: str) -> None:
    """Alternatives of every token of a long prompt."""
    await _expect(address, None, token_ids=_some_tokens(3500), max_tokens=1, prompt_logprobs=20, ignore_eos=True)


def _some_tokens(count: int) -> list[int]:
    return random.choices(_ORDINARY_TOKENS, k=count)


async def _expect(address: str, status: grpc.StatusCode | None, **request: Any) -> None:
    found: grpc.StatusCode | None = None
    async with AsyncClient(address, connect_seconds=60.0, resume_seconds=60.0) as client:
        try:
            await client.generate(**request)
        except ServingError as error:
            found = error.code
    assert found == status, f"{request}: {found}"


NEIGHBOURS: tuple[Neighbour, ...] = (resume_hugely, constrain_hard, poison, spoil, push_in, ask_for_everything)
