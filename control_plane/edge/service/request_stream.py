"""The way back of a request: from the engine's thread to the call that waits for it."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from control_plane.edge.service.errors import AlreadyExists, Unavailable, error_of
from control_plane.engine.ports import Failure, GenerationRequest, Output, RequestAccepted, RequestFailed, SequenceFinished


class EnginePort(Protocol):
    """What calls need of the engine; usable on the clients' event loop."""

    def submit(self, request: GenerationRequest) -> None:
        """Hand a request over."""

    def abort(self, request_id: str) -> None:
        """End a request if it is live; its RequestFailed follows."""


class RequestStream:
    """Output of one request that its call has not taken yet; it piles up while the call is slow. Belongs to the clients' event loop."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.ended = asyncio.Event()  # the engine has forgotten the request
        self._num_unfinished = len(request.choices)
        self._outputs: list[Output] = []
        self._failed: RequestFailed | None = None
        self._answered = asyncio.Event()  # accepted or refused
        self._arrived = asyncio.Event()

    def put(self, output: Output) -> None:
        """Take output of the request."""
        self._answered.set()
        if isinstance(output, RequestAccepted):
            return
        if isinstance(output, RequestFailed):
            self._failed = output
        else:
            self._outputs.append(output)
            self._num_unfinished -= isinstance(output, SequenceFinished)
        self._arrived.set()
        if self._failed or not self._num_unfinished:
            self.ended.set()

    async def accepted(self) -> None:
        """Wait until the engine has taken the request in; raises a RequestError when it refuses."""
        await self._answered.wait()
        if self._failed and not self._outputs:
            raise error_of(self._failed)

    async def take(self) -> Sequence[Output]:
        """Wait for output and return all there is; nothing once the request has ended, or a RequestError raised if it failed."""
        if not self.ended.is_set():
            await self._arrived.wait()
        self._arrived.clear()
        outputs, self._outputs = self._outputs, []
        if self._failed and not outputs:
            raise error_of(self._failed)
        return outputs


class LiveRequests:
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
