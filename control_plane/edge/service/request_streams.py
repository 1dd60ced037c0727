"""All requests that the engine has, and the way of their output from the engine's thread to their calls."""

import asyncio
import hmac
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from control_plane.edge.config import StreamOptions
from control_plane.edge.service.backlog import Backlog, UnwrittenTotal, token_bytes
from control_plane.edge.service.call_recorder import CallRecorder
from control_plane.edge.service.choice_output import ChoiceOutput
from control_plane.edge.service.engine_port import EnginePort
from control_plane.edge.service.errors import SHUTTING_DOWN, AlreadyExists, Cancelled, Deadline, ReaderTooSlow, Unavailable, failure_of
from control_plane.edge.service.rate_limits import rate_limits
from control_plane.edge.service.request_stream import RequestStream
from control_plane.edge.service.write_turns import Window, WriteTurns
from control_plane.engine.ports import Failure, GenerationRequest, Outputs, RequestFailed
from pypto_serving.recording.recorder import SpanRecorder

_log = logging.getLogger(__name__)


class RequestStreams:
    """All requests that the engine has, by id. Implements the engine's FrontEnd; all but `publish` belongs to the clients' event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: EnginePort, window: Window, options: StreamOptions | None = None) -> None:
        self.options = options or StreamOptions()
        self._loop = loop
        self._engine = engine
        self._streams: dict[str, RequestStream] = {}
        #: By the number of a choice that has not ended: what takes its next token, the choice, and its stream.
        self._receivers: dict[int, tuple[Callable[[int], None], ChoiceOutput, RequestStream]] = {}
        self._turns = WriteTurns(loop, window)
        self._open: dict[RequestStream, None] = {}  # whose calls have not got, or not handed on, everything yet
        self._unwritten = UnwrittenTotal()
        self._is_closed = False
        self._recorder: CallRecorder | None = None
        self._switching = threading.Lock()  # a recording ends on the engine's thread: each call is told to it once

    def record(self, recorder: SpanRecorder | None) -> None:
        """Record calls from now on, or no more; those that go on are recorded as far as they have come. May be called on any thread."""
        with self._switching:
            running, self._recorder = self._recorder, CallRecorder(recorder) if recorder is not None else None
            going_on = list(self._open)
        if running is not None:
            running.add_live(going_on)

    def __len__(self) -> int:
        """Calls that have not got, or not handed on, everything yet."""
        return len(self._open)

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

    def publish(self, outputs: Outputs) -> None:
        """Deliver what a pass brought; called on the engine's thread."""
        self._loop.call_soon_threadsafe(self.deliver, outputs)

    def deliver(self, outputs: Outputs) -> None:
        """Hand the output of a pass to the calls."""
        recorder = self._recorder
        begin_ns = recorder.now_ns() if recorder else 0
        self._deliver(outputs)
        if recorder:
            recorder.delivered(outputs, begin_ns)

    def _deliver(self, outputs: Outputs) -> None:
        """For a token as little is done as can be: there are many."""
        touched: dict[RequestStream, None] = {}
        self._deliver_beginnings(outputs, touched)
        receivers = self._receivers
        for number, token_id in zip(outputs.numbers, outputs.token_ids, strict=True):
            receiver = receivers.get(number)
            if receiver is not None:
                append, _, stream = receiver
                append(token_id)
                if not stream.is_in_turn or stream.is_behind or stream.has_stops:  # another one only gathers
                    touched[stream] = None
        for place, entry in outputs.logprobs:
            receiver = receivers.get(outputs.numbers[place])
            if receiver is not None:
                receiver[1].logprobs.append(entry)
        stopped = [choice for stream in touched if stream.has_stops for choice in self._look(stream)]
        self._deliver_ends(outputs, touched)
        for choice in stopped:
            if choice.number in receivers:
                self._engine.finish(choice.number)
        for stream in touched:
            if stream.is_behind:
                stream.count_unwritten()
        self._turns.add(touched)

    @asynccontextmanager
    async def open(
        self, request: GenerationRequest, choices: Sequence[ChoiceOutput], deadline: Deadline, waits_for_client: bool = False
    ) -> AsyncIterator[RequestStream]:
        """Submit a request; it ends when the block is left before its end. Raises AlreadyExists and Unavailable.

        With `waits_for_client` it is held while too much of its output is not written.
        """
        await self._free_id(request)
        self.require_open()
        stream = self._streams[request.request_id] = self._stream(request, choices, waits_for_client)
        self._receivers |= {choice.number: (choice.token_ids.append, choice, stream) for choice in choices if not choice.is_finished}
        self._open[stream] = None
        failure = Failure.CANCELLED
        try:
            self._engine.submit(request)
            yield stream
        except BaseException as error:
            failure = failure_of(error, deadline)
            raise
        finally:
            with self._switching:
                recorder = self._recorder
                del self._open[stream]
            if recorder:
                recorder.call_ended(stream)
            stream.backlog.close()
            if not stream.ended.is_set():
                self._engine.end(request.request_id, failure, "its call has ended")

    async def abort(self, request_id: str) -> bool:
        """End a request, which may be another front end's; returns whether it was live. Raises Unavailable."""
        try:
            return await self._engine.abort(request_id)
        except TimeoutError as error:
            raise Unavailable(str(error)) from None

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
        self.deliver(Outputs(failed=[RequestFailed(request_id, Failure.UNAVAILABLE, message) for request_id in self._streams]))

    def _stream(self, request: GenerationRequest, choices: Sequence[ChoiceOutput], waits_for_client: bool) -> RequestStream:
        request_id = request.request_id

        def hold() -> None:
            if self._is_closed:
                self.give_up(stream)
            else:
                self._engine.hold(request_id)

        def unhold() -> None:
            if not stream.ended.is_set():  # the id may be another's by now
                self._engine.unhold(request_id)

        num_bytes = token_bytes(request.choices[0].sampling, choices[0].has_stops) if request.choices else 0
        options = self.options if waits_for_client else None
        stream = RequestStream(request, choices, Backlog(options, num_bytes, self._unwritten, hold, unhold))
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
        """Nothing comes any more for a request that has ended; its id is free if nobody takes it over."""
        if not stream.ended.is_set():
            return
        for choice in stream.choices:
            self._receivers.pop(choice.number, None)
        if not stream.num_successors and self._streams.get(stream.request.request_id) is stream:
            del self._streams[stream.request.request_id]

    def _deliver_beginnings(self, outputs: Outputs, touched: dict[RequestStream, None]) -> None:
        for request_id, usage in outputs.usage:
            for stream in self._live([request_id]):
                stream.rate_limits = rate_limits(stream.request.tenant.quota, usage) if stream.request.tenant else ()
        for stream in self._live(outputs.accepted):
            stream.accept()
            self._forget_ended(stream)
            touched[stream] = None
        for logprobs in outputs.prompt_logprobs:
            for stream in self._live([logprobs.request_id]):
                stream.prompt_logprobs = logprobs
                touched[stream] = None
        for number, numerics_id in outputs.numerics:
            if number in self._receivers:
                _, choice, stream = self._receivers[number]
                choice.change_numerics(numerics_id)
                if stream.first_token_time is None:  # a choice's first token comes with its numerics id
                    stream.first_token_time = time.monotonic()

    def _deliver_ends(self, outputs: Outputs, touched: dict[RequestStream, None]) -> None:
        for finished in outputs.finished:
            receiver = self._receivers.pop(finished.number, None)
            if receiver is not None:
                _, choice, stream = receiver
                stream.finish(choice, finished)
                self._forget_ended(stream)
                touched[stream] = None
        for failed in outputs.failed:
            for stream in self._live([failed.request_id]):
                stream.fail(failed)
                self._forget_ended(stream)
                touched[stream] = None

    def _live(self, request_ids: Iterable[str]) -> list[RequestStream]:
        """The streams of requests, without those that have ended."""
        streams = [self._streams.get(request_id) for request_id in request_ids]
        return [stream for stream in streams if stream is not None and not stream.ended.is_set()]

    def _look(self, stream: RequestStream) -> list[ChoiceOutput]:
        """The choices of a stream that a stop string ends; a text that breaks ends its request, and no other one."""
        try:
            return stream.look()
        except Exception:
            request_id = stream.request.request_id
            _log.exception("text of request %s failed", request_id)
            stream.stop_looking()
            self._engine.end(request_id, Failure.INTERNAL, f"internal error, request_id {request_id!r}")
            return []
