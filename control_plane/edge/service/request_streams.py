"""All requests that the engine has, and the way of their output from the engine's thread to their calls."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from control_plane.edge.config import StreamOptions
from control_plane.edge.service.errors import SHUTTING_DOWN, AlreadyExists, Cancelled, Deadline, ReaderTooSlow, Unavailable, failure_of
from control_plane.edge.service.request_stream import Backlog, RequestStream, UnwrittenTotal
from control_plane.engine.ports import Failure, GenerationRequest, Output, RequestFailed


class EnginePort(Protocol):
    """What calls need of the engine, on the clients' event loop. A request that is not live is ignored."""

    def submit(self, request: GenerationRequest) -> None:
        """Hand a request over."""

    def hold(self, request_id: str) -> None:
        """Let a request pause: its client is slow."""

    def unhold(self, request_id: str) -> None:
        """Let a request go on."""

    def end(self, request_id: str, failure: Failure, message: str) -> None:
        """End a request if it is live; its RequestFailed follows."""


class RequestStreams:
    """All requests that the engine has, by id. Implements the engine's OutputSink; the rest belongs to the clients' event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: EnginePort, options: StreamOptions | None = None) -> None:
        self.options = options or StreamOptions()
        self._loop = loop
        self._engine = engine
        self._streams: dict[str, RequestStream] = {}
        self._num_open = 0
        self._unwritten = UnwrittenTotal()
        self._is_closed = False

    def __len__(self) -> int:
        """Calls that have not got, or not handed on, everything yet."""
        return self._num_open

    @property
    def is_closed(self) -> bool:
        """Whether the server drains."""
        return self._is_closed

    @property
    def num_unwritten_bytes(self) -> int:
        """Memory of output that calls have not handed on."""
        return self._unwritten.num_bytes

    def require_open(self) -> None:
        """Raise Unavailable once the server drains."""
        if self._is_closed:
            raise Unavailable(SHUTTING_DOWN)

    def publish(self, outputs: Sequence[Output]) -> None:
        """Hand the output of a pass of the engine's loop to the calls; called on the engine's thread, and hops once for all of it."""
        self._loop.call_soon_threadsafe(self._deliver, outputs)

    @asynccontextmanager
    async def open(self, request: GenerationRequest, deadline: Deadline, waits_for_client: bool = False) -> AsyncIterator[RequestStream]:
        """Submit a request; it ends when the block is left before its end. Raises AlreadyExists and Unavailable.

        With `waits_for_client` it is held while too much of its output is not written.
        """
        await self._free_id(request)
        self.require_open()
        stream = self._streams[request.request_id] = self._stream(request, waits_for_client)
        self._num_open += 1
        failure = Failure.CANCELLED
        try:
            self._engine.submit(request)
            yield stream
        except BaseException as error:
            failure = failure_of(error, deadline)
            raise
        finally:
            self._num_open -= 1
            stream.backlog.close()
            if not stream.ended.is_set():
                self._engine.end(request.request_id, failure, "its call has ended")

    def abort(self, request_id: str) -> bool:
        """End a request; returns whether it was live."""
        stream = self._streams.get(request_id)
        if stream is None or stream.ended.is_set():
            return False
        self._engine.end(request_id, Failure.CANCELLED, "request aborted")
        return True

    def give_up(self, stream: RequestStream) -> None:
        """End the call of a client that takes nothing."""
        if self._is_closed:
            stream.interrupt(Unavailable("the server is shutting down, and the client reads too slowly: resume the request on another one"))
        else:
            seconds = self.options.slow_reader_seconds
            stream.interrupt(
                ReaderTooSlow(f"the client has read nothing for {seconds:g} s, which is the limit: read faster, or resume later")
            )

    def close(self) -> None:
        """Refuse new requests, and end those that wait for slow clients."""
        self._is_closed = True
        for stream in list(self._streams.values()):
            if stream.backlog.is_held:
                self.give_up(stream)

    def fail_all(self, message: str) -> None:
        """End every request with UNAVAILABLE, whatever the engine does."""
        self._deliver([RequestFailed(request_id, Failure.UNAVAILABLE, message) for request_id in list(self._streams)])

    def _stream(self, request: GenerationRequest, waits_for_client: bool) -> RequestStream:
        request_id = request.request_id

        def hold() -> None:
            if self._is_closed:
                self.give_up(stream)
            else:
                self._engine.hold(request_id)

        def unhold() -> None:
            if not stream.ended.is_set():  # the id may be another's by now
                self._engine.unhold(request_id)

        options = self.options if waits_for_client else None
        stream = RequestStream(request, Backlog(options, hold, unhold, self._unwritten))
        return stream

    async def _free_id(self, request: GenerationRequest) -> None:
        """A live request with this id goes if the newcomer takes it over, and has its key. Until one of those does it keeps the id."""
        while (live := self._streams.get(request.request_id)) is not None:
            if not (request.takes_over and hmac.compare_digest(live.request.resume_key, request.resume_key)):
                raise AlreadyExists(
                    f"request_id {request.request_id!r} is in use by a live request: choose another one, or resume the request with its key"
                )
            if live.ended.is_set():
                return
            reason = Cancelled("request taken over by a resume")
            self._engine.end(request.request_id, Failure.CANCELLED, str(reason))
            live.interrupt(reason)  # its client may have left without a word, in the middle of a write
            live.num_successors += 1
            try:
                await live.ended.wait()
            finally:
                live.num_successors -= 1
                self._forget_ended(live)

    def _forget_ended(self, stream: RequestStream) -> None:
        """Free the id of a request that has ended and that nobody takes over."""
        is_over = stream.ended.is_set() and not stream.num_successors
        if is_over and self._streams.get(stream.request.request_id) is stream:
            del self._streams[stream.request.request_id]

    def _deliver(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None or stream.ended.is_set():
                continue
            stream.put(output)
            self._forget_ended(stream)
