"""SchedulerService: the sessions of all front ends."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from control_plane.edge.frontend_link.commands import check_hello, versions
from control_plane.edge.frontend_link.outputs import scheduler_state
from control_plane.edge.frontend_link.session import FrontEndSession, FrontEndView, SessionEnd, SessionEngine, StreamContext, UnreadLimits
from control_plane.edge.profiling.profiler import Profiler
from control_plane.edge.session_contract import HEARTBEAT_SECONDS, MAX_SILENCE_SECONDS, MESSAGE_SIZES
from control_plane.engine.snapshot import RefusedWorker
from pypto_serving.process.listening import EXCLUSIVE_PORT
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.scheduler.v1 import scheduler_pb2_grpc
from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.contract import MAX_VOCAB_SIZE
from pypto_serving.wire.model_directory import describe_difference

_log = logging.getLogger(__name__)

#: Options of the server that SchedulerService is added to. Pings only clear away dead connections: sessions are watched by their frames.
SERVER_OPTIONS = (
    *MESSAGE_SIZES,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    EXCLUSIVE_PORT,
)

_SETTLE_POLL_SECONDS = 0.02

#: Reasons of refusals that are remembered.
_MAX_TOLD = 64


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options that the sessions of a scheduler share."""

    scheduler_id: str  # new at every start of the process
    model_fingerprint: str
    model_name: str = "a model"  # for people
    vocab_size: int = MAX_VOCAB_SIZE
    unread: UnreadLimits = field(default_factory=UnreadLimits)
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    max_silence_seconds: float = MAX_SILENCE_SECONDS
    settle_seconds: float = 3.0  # front ends dial at least once in a second


class SchedulerService(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Serves front ends, from `open` to `close`; before and after it refuses them with UNAVAILABLE. Belongs to the engine's event loop."""

    def __init__(
        self,
        engine: SessionEngine,
        options: SessionOptions,
        standing_by: Callable[[], str] = lambda: "the scheduler stands by",
        clock: Callable[[], float] = time.monotonic,
        profiler: Profiler | None = None,
        refused_workers: Callable[[], Iterable[RefusedWorker]] = tuple,
    ) -> None:
        """`standing_by` says why front ends are refused before `open`; `refused_workers`: those that will not work for the engine."""
        self._engine = engine
        self._options = options
        self._clock = clock
        self._profiler = profiler or Profiler("scheduler")
        self._refused_workers = refused_workers
        self._sessions: dict[str, FrontEndSession] = {}  # by front end
        self._epoch = 0
        self._refusal: Callable[[], str] | None = standing_by  # None: it serves
        self._drains = False
        self._told: set[str] = set()  # why front ends were refused
        self._settled_at = math.inf  # by then front ends have submitted what was live elsewhere
        self._beating: asyncio.Task[None] | None = None

    @property
    def front_ends(self) -> list[FrontEndView]:
        """The front ends in session; may be asked on any thread."""
        return [session.view() for session in list(self._sessions.values())]

    def open(self) -> None:
        """Take front ends in."""
        self._refusal = None
        self._expect_requests()
        self._beating = asyncio.create_task(self._beat())

    def _expect_requests(self) -> None:
        """Front ends that are not in session are about to dial, and to submit what is live."""
        self._settled_at = self._clock() + self._options.settle_seconds

    def drain(self) -> None:
        """Let all front ends drain, those of now and those to come."""
        self._drains = True
        for session in self._sessions.values():
            session.tell(pb.ConnectResponse(drain=pb.Drain()))

    def close(self) -> None:
        """Say farewell to all front ends; their streams end when they have been told, which is for the server's `stop` to wait for."""
        self._refusal = lambda: "the scheduler goes"
        if self._beating:
            self._beating.cancel()
        for session in self._sessions.values():
            session.leave()

    async def Connect(  # type: ignore[override]  # the generated class knows generators only
        self, request_iterator: AsyncIterator[pb.ConnectRequest], context: StreamContext
    ) -> None:
        """One front end's session."""
        try:
            hello = await self._hello(request_iterator)
            version = self._check(hello)
        except SessionEnd as refusal:
            self._note_refusal(context.peer(), refusal)
            await refusal.abort(context)
        session = self._open_session(hello.front_end_id)
        session.take_part(self._profiler, hello.features)
        welcome = pb.Welcome(protocol_version=version, scheduler_id=self._options.scheduler_id, epoch=session.epoch)
        end = SessionEnd(grpc.StatusCode.CANCELLED, "the connection broke")
        try:
            end = await session.serve(request_iterator, context, welcome)
        finally:
            self._end_session(session, end)
        if end.code is not grpc.StatusCode.OK:
            await end.abort(context)

    async def Abort(
        self, request: pb.AbortRequest, context: grpc.aio.ServicerContext[pb.AbortRequest, pb.AbortResponse]
    ) -> pb.AbortResponse:
        """End a request of any front end."""
        if self._refusal:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self._refusal())
        return pb.AbortResponse(was_live=await self._abort(request.request_id))

    async def _abort(self, request_id: str) -> bool:
        """End a request; returns whether it was live. One whose front end may still bring it along, from another scheduler or after its
        connection broke, is waited for."""
        if self._engine.abort(request_id):
            return True
        settled_at = self._settled_at
        while self._clock() < settled_at and not self._refusal:
            await asyncio.sleep(_SETTLE_POLL_SECONDS)
            if any(request_id in session for session in self._sessions.values()):
                return self._engine.abort(request_id)
        return False

    async def _hello(self, frames: AsyncIterator[pb.ConnectRequest]) -> pb.Hello:
        seconds = self._options.max_silence_seconds
        try:
            frame = await asyncio.wait_for(anext(frames, None), seconds)
        except TimeoutError:
            raise SessionEnd(grpc.StatusCode.DEADLINE_EXCEEDED, f"no Hello within {seconds:g} s") from None
        except DecodeError as error:
            raise SessionEnd(grpc.StatusCode.INVALID_ARGUMENT, f"frame: {error}") from None
        if frame is None or not frame.HasField("hello"):
            raise SessionEnd(grpc.StatusCode.INVALID_ARGUMENT, "frame: the first one has to be Hello")
        return frame.hello

    def _note_refusal(self, peer: str, refusal: SessionEnd) -> None:
        """Log why a front end is refused, once per reason: it dials again every second. That we stand by or go is no fault of its."""
        reason, is_expected = refusal.message, refusal.code is grpc.StatusCode.UNAVAILABLE
        if reason not in self._told:
            if len(self._told) >= _MAX_TOLD:
                self._told.clear()
            self._told.add(reason)
            _log.log(logging.INFO if is_expected else logging.WARNING, "front end refused", extra={"peer": peer, "reason": reason})

    def _open_session(self, front_end_id: str) -> FrontEndSession:
        options = self._options
        if predecessor := self._sessions.get(front_end_id):
            self._end_session(predecessor, SessionEnd(grpc.StatusCode.ABORTED, f"replaced by a newer stream of front end {front_end_id}"))
        self._epoch += 1
        session = FrontEndSession(front_end_id, self._epoch, self._engine, options.vocab_size, options.unread, self._clock)
        self._sessions[front_end_id] = session
        session.tell_state(self._state())
        if self._drains:
            session.tell(pb.ConnectResponse(drain=pb.Drain()))
        _log.info("front end in session", extra={"front_end": front_end_id, "epoch": self._epoch})
        return session

    def _check(self, hello: pb.Hello) -> int:
        """The version to speak; raises SessionEnd."""
        try:
            version = check_hello(hello)
        except FrameError as error:
            raise SessionEnd(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        if self._refusal:
            raise SessionEnd(grpc.StatusCode.UNAVAILABLE, self._refusal())
        if not version:
            theirs = f"hello.protocol_version: {hello.protocol_version}, hello.min_protocol_version: {hello.min_protocol_version}"
            raise SessionEnd(grpc.StatusCode.FAILED_PRECONDITION, f"{theirs}; {versions()}")
        if hello.model_fingerprint != self._options.model_fingerprint:
            theirs = hello.model_name or f"a model with fingerprint {hello.model_fingerprint}"
            difference = describe_difference("the front end", theirs, "this scheduler", self._options.model_name)
            raise SessionEnd(grpc.StatusCode.FAILED_PRECONDITION, difference)
        return version

    def _end_session(self, session: FrontEndSession, end: SessionEnd) -> None:
        """End a session, and with it all its requests, unless a newer one has done so."""
        session.end(end)
        if self._sessions.get(session.front_end_id) is session:
            del self._sessions[session.front_end_id]
            self._engine.close_front_end(session)
            self._expect_requests()  # whatever the end: a connection that broke can look like one that was closed
            self._profiler.left(session)
            _log.info("front end gone", extra={"front_end": session.front_end_id, "epoch": session.epoch, "reason": end.message})

    def _state(self) -> pb.SchedulerState:
        return scheduler_state(self._engine.take_snapshot(), self._refused_workers())

    async def _beat(self) -> None:
        """Tell all front ends the engine's numbers, and end the sessions of those that are silent.

        Silence is counted in our own beats: while this process was stopped nobody could be heard.
        """
        options = self._options
        max_silent_beats = round(options.max_silence_seconds / options.heartbeat_seconds)
        while True:
            await asyncio.sleep(options.heartbeat_seconds)
            numbers = self._state()
            for session in list(self._sessions.values()):
                session.tell_state(numbers)
                session.num_silent_beats += 1
                if session.num_silent_beats > max_silent_beats:
                    silence = f"nothing was heard of the front end for {options.max_silence_seconds:g} s"
                    self._end_session(session, SessionEnd(grpc.StatusCode.ABORTED, silence))
