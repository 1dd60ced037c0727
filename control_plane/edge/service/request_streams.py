"""All requests that the engine has, and the way of their output from the engine's thread to their calls."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from control_plane.edge.service.errors import AlreadyExists, Unavailable
from control_plane.edge.service.request_stream import RequestStream
from control_plane.engine.ports import Failure, GenerationRequest, Output, RequestFailed


class EnginePort(Protocol):
    """What calls need of the engine; usable on the clients' event loop."""

    def submit(self, request: GenerationRequest) -> None:
        """Hand a request over."""

    def abort(self, request_id: str) -> None:
        """End a request if it is live; its RequestFailed follows."""


class RequestStreams:
    """All requests that the engine has, by id. Implements the engine's OutputSink; the rest belongs to the clients' event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: EnginePort) -> None:
        self._loop = loop
        self._engine = engine
        self._streams: dict[str, RequestStream] = {}
        self._num_open = 0
        self._is_closed = False

    def __len__(self) -> int:
        """Calls that have not got, or not handed on, everything yet."""
        return self._num_open

    def publish(self, outputs: Sequence[Output]) -> None:
        """See OutputSink: called on the engine's thread, one hop to ours for the whole pass."""
        self._loop.call_soon_threadsafe(self._deliver, outputs)

    @asynccontextmanager
    async def open(self, request: GenerationRequest) -> AsyncIterator[RequestStream]:
        """Submit a request; it is aborted when the block is left before its end. Raises AlreadyExists and Unavailable."""
        await self._free_id(request)
        if self._is_closed:
            raise Unavailable("the server is shutting down")
        stream = self._streams[request.request_id] = RequestStream(request)
        self._num_open += 1
        try:
            self._engine.submit(request)
            yield stream
        finally:
            self._num_open -= 1
            if not stream.ended.is_set():
                self._engine.abort(request.request_id)

    def abort(self, request_id: str) -> bool:
        """End a request; returns whether it was live."""
        if request_id not in self._streams:
            return False
        self._engine.abort(request_id)
        return True

    def close(self) -> None:
        """Take no more requests."""
        self._is_closed = True

    def fail_all(self, message: str) -> None:
        """End every request with UNAVAILABLE, whatever the engine does."""
        self._deliver([RequestFailed(request_id, Failure.UNAVAILABLE, message) for request_id in list(self._streams)])

    async def _free_id(self, request: GenerationRequest) -> None:
        """A live request with this id goes if the newcomer takes it over, and has its key."""
        while (live := self._streams.get(request.request_id)) is not None:
            if not (request.takes_over and hmac.compare_digest(live.request.resume_key, request.resume_key)):
                raise AlreadyExists(f"request_id {request.request_id!r} is in use by a live request")
            self._engine.abort(request.request_id)
            await live.ended.wait()

    def _deliver(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            stream.put(output)
            if stream.ended.is_set():
                del self._streams[output.request_id]
