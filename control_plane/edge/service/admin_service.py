"""The gRPC service for operators."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc.aio

from control_plane.edge.engine_thread import EngineThread
from control_plane.edge.profiling.admin_messages import read_limits, write_parts
from control_plane.edge.profiling.profiler import ProfileRefused
from control_plane.edge.service.errors import FailedPrecondition, InvalidArgument, Unavailable
from control_plane.edge.worker_link.link import LinkPhase
from control_plane.engine.snapshot import SequenceState, WorkerSnapshot
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.log.v1 import log_pb2
from pypto_serving.process.log_level import LogLevel, check_level_change
from pypto_serving.wire.checks import FrameError

_R = TypeVar("_R")
_ENGINE_SECONDS = 5.0

_PHASES = {
    LinkPhase.CONNECTING: admin_pb2.LINK_PHASE_CONNECTING,
    LinkPhase.REFUSED: admin_pb2.LINK_PHASE_REFUSED,
    LinkPhase.IN_SESSION: admin_pb2.LINK_PHASE_IN_SESSION,
    LinkPhase.RESUMING: admin_pb2.LINK_PHASE_RESUMING,
}

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class FrontEndCounts:
    """What front ends say of themselves, all of them together."""

    num_calls: int  # that have not got, or not handed on, everything yet
    num_held_back: int
    is_draining: bool


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Lives on any event loop, asks the engine on its own."""

    def __init__(self, engine: EngineThread, front_ends: Callable[[], FrontEndCounts], start_drain: Callable[[], None]) -> None:
        self._engine = engine
        self._front_ends = front_ends
        self._start_drain = start_drain
        self._log_level = LogLevel()

    async def GetState(self, request: admin_pb2.GetStateRequest, context: _Context) -> admin_pb2.GetStateResponse:
        """A consistent snapshot; prompts and output are part of it only when they are asked for."""
        state = await _answer(self._engine.call(lambda engine: engine.state(request.with_sequences, request.with_token_ids)))
        counts = self._front_ends()
        return admin_pb2.GetStateResponse(
            workers=[_worker(worker) for worker in state.snapshot.workers],
            sequences=[_sequence(sequence) for sequence in state.sequences],
            num_waiting=state.snapshot.num_waiting_for_capacity + state.snapshot.num_waiting_for_worker,
            links=[
                admin_pb2.LinkState(address=link.address, phase=_PHASES[link.phase], trouble=link.trouble)
                for link in await _answer(self._engine.link_states())
            ],
            num_held=state.snapshot.num_held,
            num_calls=counts.num_calls,
            num_held_back=counts.num_held_back,
            draining=counts.is_draining,
        )

    async def ResetPrefixCache(self, request: admin_pb2.ResetPrefixCacheRequest, context: _Context) -> admin_pb2.ResetPrefixCacheResponse:
        """Forget cached pages that nobody uses."""
        num_pages = await _answer(self._engine.call(lambda engine: engine.reset_prefix_cache()))
        return admin_pb2.ResetPrefixCacheResponse(num_pages=num_pages)

    async def Drain(self, request: admin_pb2.DrainRequest, context: _Context) -> admin_pb2.DrainResponse:
        """Do what SIGTERM does."""
        self._start_drain()
        return admin_pb2.DrainResponse(num_running=self._front_ends().num_calls)

    async def StartProfile(self, request: admin_pb2.StartProfileRequest, context: _Context) -> admin_pb2.StartProfileResponse:
        """Let every process record what it does."""
        try:
            limits = read_limits(request)
            recording_id, processes, left_out = await _answer(self._engine.call(lambda engine: self._engine.profiler.start(limits)))
        except FrameError as error:
            raise InvalidArgument(str(error)) from None
        except ProfileRefused as error:
            raise FailedPrecondition(str(error)) from None
        return admin_pb2.StartProfileResponse(recording_id=recording_id, processes=processes, left_out=left_out)

    async def SetLogLevel(self, request: admin_pb2.SetLogLevelRequest, context: _Context) -> admin_pb2.SetLogLevelResponse:
        """Tell every process, or those of a name, from which level on to log."""
        try:
            told, left_out = await _answer(self._engine.call(lambda engine: self._tell_log_level(request.change, request.process)))
        except FrameError as error:
            raise InvalidArgument(str(error)) from None
        if self._engine.profiler.process_name in told:
            self._log_level.change(request.change)  # not on the engine's loop: it waits for a thread that begins
        return admin_pb2.SetLogLevelResponse(processes=told, left_out=left_out)

    def _tell_log_level(self, change: log_pb2.LevelChange, process: str) -> tuple[list[str], list[str]]:
        """On the engine's event loop: tell those in session; returns who is told, this process too, and who cannot be."""
        own_name = self._engine.profiler.process_name
        sessions = {session.process_name: session for session in self._engine.profiler.participants}
        names = [own_name, *sessions]
        chosen = [name for name in names if not process or f"{name} ".startswith(f"{process} ")]
        if not chosen:
            raise InvalidArgument(f"process = {process!r} is none of {', '.join(names)}, and not how one of these names begins")
        check_level_change(change)
        told = [name for name in chosen if name == own_name or sessions[name].knows_log_levels]
        for name in told:
            if name != own_name:
                sessions[name].set_log_level(change)
        return told, [name for name in chosen if name not in told]

    async def StopProfile(self, request: admin_pb2.StopProfileRequest, context: _Context) -> None:  # type: ignore[override]  # it writes
        """Send what every process has recorded."""
        try:
            processes = await self._engine.stop_profile(request.recording_id)
        except ProfileRefused as error:
            raise FailedPrecondition(str(error)) from None
        for process in processes:
            parts = write_parts(process)
            # One at a time, on another thread: requests go on over this event loop.
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                await context.write(part)


async def _answer(question: Awaitable[_R]) -> _R:
    """What the engine says, if its event loop turns."""
    try:
        return await asyncio.wait_for(question, _ENGINE_SECONDS)
    except TimeoutError:
        raise Unavailable(
            f"the engine has not answered for {_ENGINE_SECONDS:g} s; is the health service's `liveness` still SERVING?"
        ) from None


def _worker(worker: WorkerSnapshot) -> admin_pb2.WorkerState:
    return admin_pb2.WorkerState(
        address=worker.address,
        incarnation=worker.incarnation,
        epoch=worker.epoch,
        numerics_id=worker.numerics_id,
        sent_step_id=worker.sent_step_id,
        acked_step_id=worker.acked_step_id,
        num_running=worker.num_running,
        pages=admin_pb2.PageCounts(
            free=worker.pages.free, fenced=worker.pages.fenced, cached=worker.pages.cached, referenced=worker.pages.referenced
        ),
    )


def _sequence(sequence: SequenceState) -> admin_pb2.SequenceState:
    return admin_pb2.SequenceState(
        request_id=sequence.request_id,
        choice=sequence.choice,
        worker=sequence.worker,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_generated_tokens=sequence.num_generated_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        num_pages=sequence.num_pages,
        held=sequence.is_held,
        age_seconds=sequence.age_seconds,
        queue_seconds=sequence.queue_seconds,
        token_ids=sequence.token_ids,
    )
