"""The link of a front end to the scheduler: one session after the other, so that calls notice nothing of the change."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import grpc
import grpc.aio

from control_plane.edge.scheduler_link import commands
from control_plane.edge.scheduler_link.dialler import Dialler
from control_plane.edge.scheduler_link.live_requests import LiveRequests
from control_plane.edge.scheduler_link.options import FrontEndSide, SchedulerLinkOptions
from control_plane.edge.scheduler_link.session import Session
from control_plane.edge.scheduler_link.stream import LossCause, SessionLost
from control_plane.engine.ports import Failure, GenerationRequest
from control_plane.engine.snapshot import EngineSnapshot, RefusedWorker
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.scheduler.v1 import scheduler_pb2_grpc
from pypto_serving.wire.checks import FrameError

_log = logging.getLogger(__name__)

#: A snapshot that is older says nothing of the scheduler's health any more. While this process stood still none could be read.
_STALE_SECONDS = 1.5

#: For which the scheduler is given the chance to end a session that we leave.
_LEAVE_SECONDS = 1.0


class SchedulerLink:
    """Implements the calls' EnginePort. Everything belongs to the clients' event loop; one task dials, another one watches.

    dialling --Welcome--> in session --stream ends, frame is broken, silence--> dialling
        |                     |
        '-- a request waits   '-- what is live was submitted once more; RequestAccepted is told the calls only once
            too long: it ends
    """

    def __init__(
        self,
        options: SchedulerLinkOptions,
        front_end: FrontEndSide,
        clock: Callable[[], float] = time.monotonic,
        active_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`active_clock` says how long requests have waited for a scheduler, and how old its numbers are; see ActiveClock."""
        self._options = options
        self._front_end = front_end
        self._clock = clock
        self._active_clock = active_clock
        self._requests = LiveRequests(options.max_losses)
        self._dialler = Dialler(options, clock)
        self._session: Session | None = None
        self._in_session = asyncio.Event()
        self._is_draining = False
        self._is_leaving = False
        self._snapshot = EngineSnapshot()
        self._tasks: list[asyncio.Task[None]] = []
        self.since = active_clock()  # the session, or the outage, has lasted since then
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()  # by a defect of ours

    def start(self) -> None:
        """Dial, until `close`."""
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._note_failure)

    async def close(self) -> None:
        """End the session in good order; nothing is delivered any more."""
        self._is_leaving = True
        if self._session:
            running, _ = self._tasks
            await self._session.leave()
            await asyncio.wait([running], timeout=_LEAVE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What calls and operators want

    @property
    def channel(self) -> grpc.aio.Channel | None:
        """The connection to the scheduler in session, which serves operators too."""
        return self._session.channel if self._session else None

    async def refused_workers(self) -> list[RefusedWorker]:
        """Those that will not work for the scheduler in session."""
        return self._session.refused_workers if self._session else []

    @property
    def trouble(self) -> str:
        """Why there is no scheduler; empty in session."""
        return "" if self._session else self._dialler.trouble

    @property
    def snapshot(self) -> EngineSnapshot:
        """The latest numbers of the engine. Without a scheduler there are no workers, and nothing is well."""
        session = self._session
        if session is None or session.snapshot is None:
            return replace(self._snapshot, workers=(), healthy=False, trouble="no scheduler is in session")
        if self._active_clock() - session.snapshot_time > _STALE_SECONDS:
            trouble = f"the scheduler has not said for {_STALE_SECONDS:g} s how it is"
            return replace(session.snapshot, workers=(), healthy=False, trouble=trouble)
        return session.snapshot

    def seconds_since_turn(self) -> float:
        """0: no loop of this process belongs to an engine. What the scheduler's is like shows in the snapshot."""
        return 0.0

    def submit(self, request: GenerationRequest) -> None:
        """Hand a request over; it waits while there is no scheduler."""
        self._requests.add(request, self._active_clock())
        if self._session:
            self._session.wake()

    def finish(self, number: int) -> None:
        """End a choice: its text contains a stop string."""
        self._command(self._requests.finish(number, self._clock()), pb.Command(finish=number))

    def hold(self, request_id: str) -> None:
        """Let a request pause."""
        self._command(self._requests.hold(request_id, True), pb.Command(hold=request_id))

    def unhold(self, request_id: str) -> None:
        """Let a request go on."""
        self._command(self._requests.hold(request_id, False), pb.Command(unhold=request_id))

    def end(self, request_id: str, failure: Failure, message: str) -> None:
        """End a request."""
        self._command(self._requests.end(request_id, failure, message), commands.end(request_id, failure, message))

    def drain(self) -> None:
        """Let the scheduler refuse new requests of this front end, and end those that never ran."""
        self._command(not self._is_draining, commands.DRAIN)
        self._is_draining = True

    async def abort(self, request_id: str) -> bool:
        """End a request of whatever front end; returns whether it was live. Raises TimeoutError, as EnginePort says."""
        if request_id in self._requests:
            self.end(request_id, Failure.CANCELLED, "request aborted")
            return True
        try:
            async with asyncio.timeout(self._options.grace_seconds):
                while (was_live := await self._abort_elsewhere(request_id)) is None:
                    pass
        except TimeoutError:
            raise TimeoutError(f"no scheduler within {self._options.grace_seconds:g} s: {self._dialler.trouble}") from None
        return was_live

    async def _abort_elsewhere(self, request_id: str) -> bool | None:
        """Whether a request was live; None: the scheduler went before it said so."""
        await self._in_session.wait()
        assert self._session is not None
        stub = scheduler_pb2_grpc.SchedulerServiceStub(self._session.channel)
        try:
            answer = await stub.Abort(pb.AbortRequest(request_id=request_id))
        except grpc.aio.AioRpcError as error:
            _log.info("abort is tried again", extra={"reason": error.details()})
            await asyncio.sleep(self._options.min_pause_seconds)
            return None
        return bool(answer.was_live)

    def _command(self, is_to_be_sent: bool, command: pb.Command) -> None:
        if is_to_be_sent and self._session:
            self._session.command(command)
        self._deliver_ended()

    def _deliver_ended(self) -> None:
        ended = self._requests.pop_ended()
        if ended.finished or ended.failed:
            self._front_end.deliver_soon(ended)

    # Sessions

    async def _run(self) -> None:
        while not self._is_leaving:
            stream, welcome = await self._dialler.dial()
            facts = {"address": stream.address, "scheduler": welcome.scheduler_id, "epoch": welcome.epoch, "requests": len(self._requests)}
            _log.info("in session with the scheduler", extra=facts)
            session = Session(stream, self._options, self._requests, self._front_end, self._clock, self._active_clock)
            self._begin_session(session, welcome.scheduler_id)
            try:
                await session.run()
            except (SessionLost, FrameError) as error:
                self._lose_session(session, error)

    def _begin_session(self, session: Session, scheduler_id: str) -> None:
        self._session = session
        self._requests.begin_session(scheduler_id)
        self._deliver_ended()
        if self._is_draining:
            session.command(commands.DRAIN)
        self.since = self._active_clock()
        self._in_session.set()

    def _lose_session(self, session: Session, error: Exception) -> None:
        self._session = None
        self._in_session.clear()
        self._snapshot = session.snapshot or self._snapshot
        self.since = self._active_clock()
        if self._is_leaving:
            return
        self._dialler.lose(session.address, error)
        cause = error.cause if isinstance(error, SessionLost) else LossCause.CONTENT
        self._requests.lose_session(cause, self._clock(), self.since)
        self._deliver_ended()

    async def _watch(self) -> None:
        """Beat in a session, and give up requests that have been without one for too long."""
        options = self._options
        while True:
            await asyncio.sleep(options.heartbeat_seconds)
            if self._session:
                self._session.beat()
                continue
            self._requests.fail_overdue(self._active_clock(), options.grace_seconds, self._dialler.trouble)
            self._deliver_ended()

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self.failed.done():
            _log.error("the link to the scheduler failed", exc_info=error)
            self.failed.set_result(error)
