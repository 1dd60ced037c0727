"""The session of one front end, on the scheduler's side."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from control_plane.edge.frontend_link.commands import SessionLimits, failure_of, read_submissions
from control_plane.edge.frontend_link.outputs import write_outputs
from control_plane.edge.profiling.profiler import Profiler
from control_plane.engine.ports import Failure, FrontEnd, GenerationRequest, Outputs
from control_plane.engine.snapshot import EngineSnapshot
from pypto_serving.log.v1 import log_pb2
from pypto_serving.profile.v1 import profile_pb2
from pypto_serving.recording.clock_offset import PeerClock
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.checks import FrameError, check_range, is_unknown_kind
from pypto_serving.wire.contract import LOG_LEVELS, RECORDINGS

_log = logging.getLogger(__name__)

_MAX_METRICS_BYTES = 16 * 1024 * 1024

#: A message of output ends with the pass that brings it above this: each that is written shows that the front end reads.
_MESSAGE_BYTES = 4 * 1024 * 1024

StreamContext = grpc.aio.ServicerContext[pb.ConnectRequest, pb.ConnectResponse]


class SessionEngine(Protocol):
    """What sessions need of the engine. All calls are made on its event loop; a request that is not live there is ignored."""

    def submit(self, request: GenerationRequest, front_end: FrontEnd) -> None:
        """Take a request in, or refuse it."""

    def finish(self, front_end: FrontEnd, number: int) -> None:
        """End a choice with STOP."""

    def end(self, front_end: FrontEnd, request_id: str, failure: Failure, message: str) -> None:
        """End a request with RequestFailed."""

    def hold(self, front_end: FrontEnd, request_id: str) -> None:
        """Let a request pause."""

    def unhold(self, front_end: FrontEnd, request_id: str) -> None:
        """Let a request go on."""

    def drain(self, front_end: FrontEnd) -> None:
        """Refuse a front end's new requests, and end those that never ran."""

    def close_front_end(self, front_end: FrontEnd) -> None:
        """Forget a front end and all its requests."""

    def abort(self, request_id: str) -> bool:
        """End a request of any front end; returns whether it was live."""

    def take_snapshot(self) -> EngineSnapshot:
        """The numbers of this moment."""


class SessionEnd(Exception):
    """How a session ends."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    async def abort(self, context: StreamContext) -> NoReturn:
        """End the call with this code and message."""
        await context.abort(self.code, self.message)


@dataclass(frozen=True, slots=True)
class FrontEndView:
    """A front end as operators see it."""

    front_end_id: str
    epoch: int
    num_requests: int
    num_calls: int
    num_held_back: int
    num_unwritten_bytes: int
    metrics: bytes  # in Prometheus' text format; empty if it has a port of its own for them
    is_draining: bool


@dataclass(frozen=True, slots=True)
class UnreadLimits:
    """A front end that is behind by more than both loses its session. A burst alone ends none: after the next dial it would come again."""

    max_bytes: int = 64 * 1024 * 1024  # of output, beside the message that is being written
    max_seconds: float = 5.0  # for which that message has been on its way


class FrontEndSession:
    """One front end's stream. Implements the engine's FrontEnd; all state belongs to the engine's event loop.

    One coroutine reads, one writes. What the engine brings while a write is under way goes into the next message.
    """

    def __init__(
        self, front_end_id: str, epoch: int, engine: SessionEngine, vocab_size: int, unread: UnreadLimits, clock: Callable[[], float]
    ) -> None:
        self.front_end_id = front_end_id
        self.epoch = epoch
        self.num_silent_beats = 0
        self._engine = engine
        self._vocab_size = vocab_size
        self._unread = unread
        self._clock = clock
        self._requests: dict[str, set[int]] = {}  # numbers of the live choices of each live request
        self._owners: dict[int, str] = {}  # request of each live choice
        self._passes: deque[pb.ConnectResponse] = deque()  # to be written
        self._num_bytes: deque[int] = deque()  # of each
        self._write_began = -math.inf  # when the latest message was begun
        self._news: dict[str, pb.ConnectResponse] = {}  # other frames to be written, the latest of each kind
        self._is_leaving = False
        self._is_draining = False  # the front end is
        self._writable = asyncio.Event()
        self._ended: asyncio.Future[SessionEnd] = asyncio.get_running_loop().create_future()
        self._state = pb.FrontEndState()
        self._profiler: Profiler | None = None
        self.can_record = self.knows_log_levels = False
        self.peer_clock = PeerClock()

    def take_part(self, profiler: Profiler, features: Collection[str]) -> None:
        """Take part in recordings, if the front end knows them."""
        self._profiler, self.can_record, self.knows_log_levels = profiler, RECORDINGS in features, LOG_LEVELS in features
        profiler.joined(self)

    @property
    def process_name(self) -> str:
        """What the front end is called in a trace."""
        return f"front end {self.front_end_id}"

    def record(self, recording: profile_pb2.Recording) -> None:
        """Tell the front end what is to be recorded."""
        self.tell(pb.ConnectResponse(recording=recording))

    def set_log_level(self, change: log_pb2.LevelChange) -> None:
        """Tell the front end from which level on to log."""
        self.tell(pb.ConnectResponse(log_level=change))

    def __contains__(self, request_id: object) -> bool:
        """Whether a request is live."""
        return request_id in self._requests

    def view(self) -> FrontEndView:
        """Describe the front end."""
        state = self._state
        return FrontEndView(
            self.front_end_id,
            self.epoch,
            len(self._requests),
            state.num_calls,
            state.num_held_back,
            state.num_unwritten_bytes,
            state.metrics,
            self._is_draining,
        )

    # What goes out

    def publish(self, outputs: Outputs) -> None:
        """Leave what a pass brought for the writer. A front end that does not read loses its session, never the engine its time.

        So does one whose output cannot be written, by a defect of ours: the pass would be missing.
        """
        self._require_reader()
        if self._ended.done():
            return
        if not self._passes or self._num_bytes[-1] > _MESSAGE_BYTES:
            self._passes.append(pb.ConnectResponse())
            self._num_bytes.append(0)
        passes = self._passes[-1].passes.passes
        message = passes.add()
        try:
            write_outputs(outputs, message)
        except Exception:
            del passes[-1]
            self.end(SessionEnd(grpc.StatusCode.INTERNAL, "output cannot be written"))
            raise
        self._num_bytes[-1] += message.ByteSize()
        self._forget_ended(outputs)
        self._writable.set()

    def _require_reader(self) -> None:
        num_bytes, seconds = sum(self._num_bytes), self._clock() - self._write_began
        if num_bytes > self._unread.max_bytes and seconds > self._unread.max_seconds:
            behind = f"{num_bytes} bytes of output wait, and nothing was read for {seconds:.1f} s"
            limits = f"limits {self._unread.max_bytes} and {self._unread.max_seconds:g} s"
            self.end(SessionEnd(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{behind}, {limits}"))

    def tell(self, frame: pb.ConnectResponse) -> None:
        """Leave a frame without output for the writer, in place of an earlier one of its kind that is not written yet."""
        self._news[frame.WhichOneof("frame") or ""] = frame
        self._writable.set()

    def tell_state(self, state: pb.SchedulerState) -> None:
        """Leave the engine's numbers for the writer, with our clock."""
        frame = pb.ConnectResponse(state=state)
        frame.state.clock.CopyFrom(self.peer_clock.reading())
        self.tell(frame)

    def leave(self) -> None:
        """Say farewell after everything that waits to be written, and end."""
        self._is_leaving = True
        self.tell(pb.ConnectResponse(farewell=pb.Farewell()))

    def end(self, end: SessionEnd) -> None:
        """End the session at once."""
        if not self._ended.done():
            self._ended.set_result(end)

    async def serve(self, frames: AsyncIterator[pb.ConnectRequest], context: StreamContext, welcome: pb.Welcome) -> SessionEnd:
        """Read and write until the session ends."""
        await context.write(pb.ConnectResponse(welcome=welcome))
        tasks = asyncio.create_task(self._read(frames)), asyncio.create_task(self._write(context))
        try:
            ends: set[asyncio.Future[Any]] = {self._ended, *tasks}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self.end(SessionEnd(grpc.StatusCode.CANCELLED, "the connection broke"))
            return self._ended.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, context: StreamContext) -> None:
        while True:
            await self._writable.wait()
            self._writable.clear()
            while frame := self._next_frame():
                self._write_began = self._clock()
                await context.write(frame)
            if self._is_leaving and not self._writable.is_set():
                self.end(SessionEnd(grpc.StatusCode.OK, "the scheduler goes"))

    def _next_frame(self) -> pb.ConnectResponse | None:
        """What is to be written next; output first, as its numbers are older than those of a state, and a farewell is the last frame."""
        if self._passes:
            self._num_bytes.popleft()
            return self._passes.popleft()
        return self._news.pop(next(iter(self._news))) if self._news else None

    def _forget_ended(self, outputs: Outputs) -> None:
        for request_id in outputs.accepted:
            if not self._requests.get(request_id):
                self._requests.pop(request_id, None)
        for finished in outputs.finished:
            request_id = self._owners.pop(finished.number, "")
            numbers = self._requests.get(request_id, set())
            numbers.discard(finished.number)
            if not numbers:
                self._requests.pop(request_id, None)
        for failed in outputs.failed:
            for number in self._requests.pop(failed.request_id, ()):
                del self._owners[number]

    # What comes in

    async def _read(self, frames: AsyncIterator[pb.ConnectRequest]) -> None:
        try:
            async for frame in frames:
                if self._ended.done():
                    return
                self._receive(frame)
        except (FrameError, DecodeError) as error:
            self.end(SessionEnd(grpc.StatusCode.INVALID_ARGUMENT, str(error)))
        else:
            self.end(SessionEnd(grpc.StatusCode.OK, "closed by the front end"))

    def _receive(self, frame: pb.ConnectRequest) -> None:
        self.num_silent_beats = 0
        match frame.WhichOneof("frame"):
            case "commands":
                limits = SessionLimits(self._vocab_size, self._requests.keys(), self._owners.keys())
                self._apply(frame.commands, read_submissions(frame.commands, limits, self._clock()))
            case "state":
                check_range("state.metrics (length)", len(frame.state.metrics), 0, _MAX_METRICS_BYTES)
                if not frame.state.metrics:
                    frame.state.metrics = self._state.metrics
                self._state = frame.state
                self.peer_clock.heard(frame.state.clock)
            case "spans":
                if self._profiler:
                    self._profiler.receive(self, frame.spans)
            case None if is_unknown_kind(frame):
                _log.debug("frame of an unknown kind ignored", extra={"front_end": self.front_end_id})
            case kind:
                raise FrameError(f"frame: {kind or 'not set'}; after Hello it is commands, state or spans")

    def _apply(self, commands: pb.Commands, requests: list[GenerationRequest]) -> None:
        engine, coming = self._engine, iter(requests)
        for command in commands.commands:
            match command.WhichOneof("command"):
                case "submit":
                    self._submit(next(coming))
                case "finish":
                    engine.finish(self, command.finish)
                case "hold":
                    engine.hold(self, command.hold)
                case "unhold":
                    engine.unhold(self, command.unhold)
                case "end":
                    engine.end(self, command.end.request_id, failure_of(command.end), command.end.message)
                case "drain":
                    self._is_draining = True
                    engine.drain(self)

    def _submit(self, request: GenerationRequest) -> None:
        numbers = {choice.number for choice in request.choices}
        self._requests[request.request_id] = numbers
        self._owners.update(dict.fromkeys(numbers, request.request_id))
        self._engine.submit(request, self)
