"""Clients that cost little: they count messages and read none but the first of a stream."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import cycle

import grpc

from clients.connection import open_async_channel
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.profile.v1 import profile_pb2

_METHOD = "/pypto_serving.inference.v1.InferenceService/GenerateStream"
_PROMPT_TOKENS = 16
_VOCABULARY = 1000  # every model has so many
_MAX_OPENING = 100  # streams that wait for their first message

Call = grpc.aio.UnaryStreamCall[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one call: seconds to the first message, which is Started, and the number of all; a status unless it ended well."""

    started_seconds: float
    num_messages: int
    failure: str = ""


class Caller:
    """Makes calls on several channels in turn."""

    def __init__(self, channels: Sequence[grpc.aio.Channel]) -> None:
        methods = [channel.unary_stream(_METHOD, bytes, bytes) for channel in channels]
        self._next_method = cycle(methods).__next__

    def open(self, max_tokens: int) -> Call:
        """Begin a call with a random prompt."""
        spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=random.choices(range(100, _VOCABULARY), k=_PROMPT_TOKENS)))
        spec.stopping.max_tokens = max_tokens
        spec.stopping.ignore_eos = True
        return self._next_method()(pb.GenerateStreamRequest(spec=spec).SerializeToString())

    async def answer(self, max_tokens: int) -> Answer:
        """Make a call and read it to its end."""
        began, started, num_messages = time.perf_counter(), 0.0, 0
        try:
            async for _ in self.open(max_tokens):
                started = started or time.perf_counter() - began
                num_messages += 1
        except grpc.aio.AioRpcError as error:
            return Answer(started, num_messages, error.code().name)
        return Answer(started, num_messages)


@asynccontextmanager
async def calling(target: str, num_channels: int = 1) -> AsyncIterator[Caller]:
    """A caller with connections of its own."""
    async with AsyncExitStack() as stack:
        yield Caller([await stack.enter_async_context(open_async_channel(target)) for _ in range(num_channels)])


def _check(answers: Sequence[Answer]) -> None:
    failures = Counter(answer.failure for answer in answers if answer.failure)
    assert not failures, failures


async def read_streams(target: str, num_streams: int, max_tokens: int) -> int:
    """Read streams that begin together to their end; returns the number of their messages."""
    async with calling(target) as caller:
        answers = await asyncio.gather(*(caller.answer(max_tokens) for _ in range(num_streams)))
    _check(answers)
    return sum(answer.num_messages for answer in answers)


async def probe_started(target: str, count: int, seconds_between: float) -> list[float]:
    """Seconds to Started of short calls, one after the other."""
    async with calling(target) as caller:
        await caller.answer(1)
        answers = []
        for _ in range(count):
            answers.append(await caller.answer(1))
            await asyncio.sleep(seconds_between)
    _check(answers)
    return [answer.started_seconds for answer in answers]


async def burst(target: str, count: int, num_channels: int) -> tuple[float, int]:
    """Make short calls all at once; returns how many began per second, and how many failed."""
    async with calling(target, num_channels) as caller:
        await asyncio.gather(*(caller.answer(1) for _ in range(num_channels)))
        began = time.perf_counter()
        answers = await asyncio.gather(*(_answer_until(caller, began) for _ in range(count)))
    ends = [answer.started_seconds for answer in answers if not answer.failure]
    return len(ends) / max(ends, default=1.0), count - len(ends)


async def _answer_until(caller: Caller, began: float) -> Answer:
    """A short call, whose seconds count from `began`."""
    offset = time.perf_counter() - began
    answer = await caller.answer(1)
    return Answer(answer.started_seconds + offset, answer.num_messages, answer.failure)


@asynccontextmanager
async def holding(target: str, count: int, num_channels: int, max_tokens: int) -> AsyncIterator[list[Call]]:
    """Streams that have begun, and go on until the block ends; those that failed are left out."""
    async with calling(target, num_channels) as caller:
        opening = asyncio.Semaphore(_MAX_OPENING)

        async def begin() -> Call | None:
            async with opening:
                call = caller.open(max_tokens)
                try:
                    await call.read()
                except grpc.aio.AioRpcError:
                    return None
                return call

        calls = [call for call in await asyncio.gather(*(begin() for _ in range(count))) if call is not None]
        yield calls


@contextmanager
def recording(admin_target: str) -> Iterator[None]:
    """Record steps in all processes until the block ends; what was recorded is fetched then, and thrown away."""
    with grpc.insecure_channel(admin_target) as channel:
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        started = admin.StartProfile(admin_pb2.StartProfileRequest(level=profile_pb2.LEVEL_STEPS, max_seconds=600.0, max_spans=1_000_000))
        yield
        for _ in admin.StopProfile(admin_pb2.StopProfileRequest(recording_id=started.recording_id)):
            pass
