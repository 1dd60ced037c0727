"""The way of a stream's events to its client."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from pypto_serving.inference.v1 import inference_pb2


class EventWriter:
    """Writes events one after the other, and tells when the client has taken none for too long although one waits for it.

    gRPC takes some megabytes for a client that does not read; then a write waits. One timer watches all writes of a stream: they are many.
    """

    def __init__(self, context: "grpc.aio.ServicerContext[Any, Any]", patience_seconds: float, give_up: Callable[[], None]) -> None:
        self._context = context
        self._patience_seconds = patience_seconds
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the writes of the block."""
        self._timer = self._loop.call_later(self._patience_seconds, self._look)
        try:
            yield
        finally:
            self._timer.cancel()

    async def write(self, event: inference_pb2.GenerateStreamResponse) -> None:
        """Return when the event is on its way and the next one may come."""
        self._waits_since = self._loop.time()
        await self._context.write(event)
        self._waits_since = None

    def _look(self) -> None:
        now = self._loop.time()
        due = self._patience_seconds + (now if self._waits_since is None else self._waits_since)
        if due <= now:
            self._give_up()
        else:
            self._timer = self._loop.call_at(due, self._look)
