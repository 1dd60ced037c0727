"""Waits in tests: for what comes by itself, never for a time."""

import asyncio
from collections.abc import Callable

import grpc.aio

from pypto_serving.inference.v1 import inference_pb2 as pb


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition()` holds; TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def until_first_token(call: grpc.aio.UnaryStreamCall) -> None:
    """Read a stream up to its first token: from then on its request has run."""
    has_run = False
    while not has_run:
        response = await call.read()
        assert isinstance(response, pb.GenerateStreamResponse)
        has_run = response.HasField("delta")
