"""WorkerService: translates frames between a control plane's stream, the session and the device thread."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from pypto_serving.process.exported_span import Export
from pypto_serving.process.log_level import LogLevel
from pypto_serving.profile.v1 import profile_pb2
from pypto_serving.recording.clock_offset import PeerClock
from pypto_serving.wire.checks import FrameError, is_unknown_kind
from pypto_serving.wire.contract import MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from pypto_serving.wire.model_directory import describe_difference
from pypto_serving.worker.v1 import worker_pb2 as pb
from pypto_serving.worker.v1 import worker_pb2_grpc
from worker.progress import ProgressCounter, StallWatch
from worker.service.device_thread import DeviceThread, ExecutedStep
from worker.service.frame_stream import FrameStream, StreamContext, StreamEnd
from worker.service.frames import check_hello, common_version, decode_step, encode_failure, encode_result, encode_welcome
from worker.service.metrics import WorkerMetrics
from worker.service.recording import WorkerRecording
from worker.service.sequence_export import SequenceExport
from worker.service.session import LeaseHeldError, Session, SessionRequest, StepOrderError
from worker.step import WorkerDescription
from worker.step_trace import MakeOperators, no_operators

_log = logging.getLogger(__name__)

_MAX_PROGRESS_SECONDS = 0.25

#: Twice as long as any control plane waits for a device: it has long given this worker up, and only a new start would help.
_STALLED_SECONDS = 120.0


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Serves one control plane at a time. All state belongs to the event loop; the device thread answers through DeviceListener.

    One coroutine writes to a stream, one reads from it. `keep_time` has to run beside the server: it watches the lease and sends progress.
    """

    def __init__(
        self,
        description: WorkerDescription,
        device: DeviceThread,
        progress: ProgressCounter,
        metrics: WorkerMetrics,
        clock: Callable[[], float] = time.monotonic,
        operators: MakeOperators = no_operators,
    ) -> None:
        self._description = description
        self._device = device
        self._recording = WorkerRecording(device, description.incarnation, operators)
        self._log_level = LogLevel()
        self._sequences = SequenceExport(None)
        self._progress = progress
        self._metrics = metrics
        self._clock = clock
        self._session: Session[pb.StepResult] = Session(description.incarnation, description.lease_seconds, description.max_steps_in_flight)
        self._stream: FrameStream | None = None
        self._peer_clock = PeerClock()
        self._resets: dict[int, tuple[FrameStream, int]] = {}  # by era: who waits for ResetDone, and the step id in it
        self._lanes_were_live = False
        self._draining = False
        self._last_refusal = ""
        self.device_failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.orphaned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stall = StallWatch()
        metrics.watch_session(self._session)

    def export_to(self, export: Export) -> None:
        """Export a span for each sequence that belongs to a trace."""
        self._sequences = SequenceExport(export)

    @property
    def trouble(self) -> str:
        """Why a control plane would find no worker here; empty if it would. May be asked on any thread."""
        return "draining" if self._draining else ""

    @property
    def stall(self) -> str:
        """What is wrong with a device that will not go on by itself; empty if nothing is. May be asked on any thread."""
        seconds = self._stall.seconds
        return f"the device has work and has made no progress for {seconds:.0f} s" if seconds > _STALLED_SECONDS else ""

    @property
    def is_idle(self) -> bool:
        """Whether no lane is live and every result was sent."""
        flushed = self._stream is None or self._stream.is_flushed
        return flushed and not self._session.num_lanes and not self._session.num_steps_in_flight

    async def Execute(  # type: ignore[override]  # the generated class knows generators only
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: StreamContext
    ) -> None:
        """One control plane's stream, from Hello until either side ends it; frames and their order are those of worker.proto."""
        try:
            stream = await self._handshake(request_iterator)
        except StreamEnd as refusal:
            self._log_refusal(context.peer(), refusal.message)
            await refusal.abort(context)
        end = StreamEnd(grpc.StatusCode.CANCELLED, "the connection broke")
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read(stream, request_iterator))
                end = await stream.write_to(context)
                reader.cancel()
        finally:
            _log.info("stream ended", extra={"control_plane": stream.control_plane_id, "reason": end.message})
            self._session.close(stream.number, self._clock(), is_farewell=stream.said_farewell)
            self._align_device()
            if stream is self._stream:
                self._stream = None
        if end.code is not grpc.StatusCode.OK:
            await end.abort(context)

    async def keep_time(self) -> None:
        """Watch the lease and send progress, until cancelled."""
        period_seconds = min(self._description.lease_seconds / 4, _MAX_PROGRESS_SECONDS)
        while True:
            await asyncio.sleep(period_seconds)
            self._watch_lease()
            self._stall.look(self._progress.count, self._device.busy and not self._device.is_compiling, self._clock())
            self._send_progress()

    def drain(self) -> None:
        """Tell the control plane to move its sequences, and take no other owner. What is on its way here is still taken in."""
        self._draining = True
        self._send_progress()

    def end_stream(self, message: str) -> None:
        """End the open stream with UNAVAILABLE."""
        if self._stream is not None:
            self._stream.end(StreamEnd(grpc.StatusCode.UNAVAILABLE, message))

    def step_executed(self, executed: ExecutedStep) -> None:
        """Keep the result and send it if the control plane is there."""
        if executed.result is None:
            result = encode_failure(executed.step_id, executed.error, executed.device_us, executed.idle_us)
        else:
            result = encode_result(executed.result, executed.device_us, executed.idle_us)
        if not self._session.finish_step(executed.era, executed.step_id, result):
            return
        self._count(executed)
        if self._stream is not None:
            self._stream.send(pb.ExecuteResponse(epoch=self._stream.epoch, result=result))

    def reset_done(self, era: int) -> None:
        """Send ResetDone if the stream that asked for it is still there."""
        stream, last_step_id = self._resets.pop(era, (None, 0))
        if stream is not None and stream is self._stream:
            stream.send(pb.ExecuteResponse(epoch=stream.epoch, reset_done=pb.ResetDone(last_step_id=last_step_id)))

    def device_failed(self, message: str) -> None:
        """Let the process end: the device cannot compute any more, or no lease is watched."""
        if not self.device_failure.done():
            self.device_failure.set_result(message)

    def _log_refusal(self, peer: str, reason: str) -> None:
        """Warn of a refusal, but not of those that differ from the one before in numbers only: control planes try for ever."""
        kind = re.sub(r"\d+", "", reason)
        level = logging.DEBUG if kind == self._last_refusal else logging.WARNING
        _log.log(level, "control plane refused", extra={"peer": peer, "reason": reason})
        self._last_refusal = kind

    async def _handshake(self, requests: AsyncIterator[pb.ExecuteRequest]) -> FrameStream:
        try:
            request = await asyncio.wait_for(anext(requests, None), self._description.lease_seconds)
        except TimeoutError:
            raise StreamEnd(grpc.StatusCode.DEADLINE_EXCEEDED, f"no Hello within {self._description.lease_seconds:g} s") from None
        except DecodeError as error:
            self._metrics.count_broken_frame()
            raise StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, _undecodable(error)) from None
        if request is None or request.WhichOneof("frame") != "hello":
            self._metrics.count_broken_frame()
            raise StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, "frame: the first one has to be Hello")
        return self._open(request.hello)

    def _open(self, hello: pb.Hello) -> FrameStream:
        self._check(hello)
        if self._draining and hello.control_plane_id != self._session.owner:
            raise StreamEnd(grpc.StatusCode.UNAVAILABLE, "the worker drains: it takes no new owner")
        session_request = SessionRequest(hello.control_plane_id, hello.takeover, hello.resume_incarnation, hello.acked_step_id)
        try:
            grant = self._session.open(session_request, self._clock())
        except LeaseHeldError as error:
            raise StreamEnd(grpc.StatusCode.FAILED_PRECONDITION, str(error), error.seconds) from None
        self._align_device()
        if self._stream is not None:
            replaced = f"replaced by a newer stream of control plane {hello.control_plane_id}, epoch {grant.epoch}"
            self._stream.end(StreamEnd(grpc.StatusCode.ABORTED, replaced))
        self._peer_clock = PeerClock()
        stream = self._stream = FrameStream(grant.stream, grant.epoch, hello.control_plane_id)
        welcome = encode_welcome(self._description, common_version(hello), grant.epoch, grant.resumed, grant.last_step_id)
        stream.send(pb.ExecuteResponse(epoch=grant.epoch, welcome=welcome))
        for result in grant.unseen:
            stream.send(pb.ExecuteResponse(epoch=grant.epoch, result=result))
        self._send_progress()
        self._metrics.set_name(hello.worker_address)
        facts = {"control_plane": hello.control_plane_id, "epoch": grant.epoch, "resumed": grant.resumed, "worker": hello.worker_address}
        _log.info("session opened", extra=facts)
        return stream

    def _check(self, hello: pb.Hello) -> None:
        """Refuse a Hello that no state of the session could make acceptable."""
        try:
            check_hello(hello)
        except FrameError as error:
            self._metrics.count_broken_frame()
            raise StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        if not common_version(hello):
            theirs = f"hello.protocol_version: {hello.protocol_version}, hello.min_protocol_version: {hello.min_protocol_version}"
            ours = f"this worker speaks {MIN_PROTOCOL_VERSION} to {PROTOCOL_VERSION}"
            raise StreamEnd(grpc.StatusCode.FAILED_PRECONDITION, f"{theirs}; {ours}")
        if hello.model_fingerprint != self._description.model_fingerprint:
            theirs = hello.model_name or f"a model with fingerprint {hello.model_fingerprint}"
            difference = describe_difference("the control plane", theirs, "this worker", self._description.model_name)
            raise StreamEnd(grpc.StatusCode.FAILED_PRECONDITION, difference)

    async def _read(self, stream: FrameStream, requests: AsyncIterator[pb.ExecuteRequest]) -> None:
        """Take frames in until the control plane closes its side or breaks the contract."""
        try:
            async for request in requests:
                self._handle(request, stream)
        except (FrameError, StepOrderError) as error:
            self._metrics.count_broken_frame()
            stream.end(StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, str(error)))
        except DecodeError as error:
            self._metrics.count_broken_frame()
            stream.end(StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, _undecodable(error)))
        else:
            stream.end(StreamEnd(grpc.StatusCode.OK, "closed by the control plane"))

    def _handle(self, request: pb.ExecuteRequest, stream: FrameStream) -> None:
        if stream is not self._stream or request.epoch != stream.epoch:
            self._metrics.count_stale_frame()
            _log.debug("stale frame dropped", extra={"epoch": request.epoch, "control_plane": stream.control_plane_id})
            return
        self._session.renew_lease(self._clock())
        match request.WhichOneof("frame"):
            case "step":
                with self._recording.spent("take in", request.step.step_id):
                    step = decode_step(request.step, self._description)
                    admitted = [admission.lane for admission in step.admissions]
                    self._session.accept_step(step.step_id, request.step.acked_step_id, step.released_lanes.tolist(), admitted)
                    self._device.submit(step)
                    self._sequences.accepted(step)
            case "reset":
                self._reset(stream)
            case "heartbeat":
                if request.heartbeat.HasField("clock"):
                    self._peer_clock.heard(request.heartbeat.clock)
                    self._send_progress(self._peer_clock.reading())
            case "recording":
                self._recording.told(request.recording, stream)
            case "log_level":
                self._log_level.change(request.log_level)
            case "farewell":
                stream.said_farewell = True  # a broken connection, too, can look as if the other side had closed the stream
            case None if is_unknown_kind(request):
                _log.debug("frame of an unknown kind ignored", extra={"control_plane": stream.control_plane_id})
            case kind:
                raise FrameError(f"frame: {kind or 'not set'}; after Hello it is step, reset, heartbeat, recording, log_level or farewell")

    def _reset(self, stream: FrameStream) -> None:
        self._session.reset()
        self._resets[self._session.era] = (stream, self._session.last_step_id)
        self._align_device()
        _log.info("reset", extra={"control_plane": stream.control_plane_id, "last_step": self._session.last_step_id})

    def _align_device(self) -> None:
        """Make the device forget what the session has forgotten."""
        if self._device.era != self._session.era:
            self._sequences.forgotten(self._session.last_step_id)
            self._device.reset(self._session.era)
            self._lanes_were_live = False

    def _watch_lease(self) -> None:
        now = self._clock()
        has_expired = self._session.expire(now)
        if self._session.is_orphaned(now) and not self.orphaned.done():
            self.orphaned.set_result(None)
        if not has_expired:
            return
        self._align_device()
        self._metrics.count_lease_expiration()
        silence = f"no frame for {self._description.lease_seconds:g} s: the lease ran out"
        _log.warning("lease ran out", extra={"lease_seconds": self._description.lease_seconds})
        if self._stream is not None:
            self._stream.end(StreamEnd(grpc.StatusCode.ABORTED, silence))
            self._stream = None

    def _send_progress(self, clock: profile_pb2.Clock | None = None) -> None:
        if self._stream is not None:
            progress = pb.Progress(
                progress=self._progress.count,
                slowest_unit_us=self._progress.slowest_unit_us,
                draining=self._draining,
                compiling=self._device.is_compiling,
                weights_digest=self._description.weights_digest(),
                clock=clock,
            )
            self._stream.send(pb.ExecuteResponse(epoch=self._stream.epoch, progress=progress))

    def _count(self, executed: ExecutedStep) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            num_tokens = len(executed.result.token_ids) if executed.result else 0
            facts = {"step": executed.step_id, "sampled_tokens": num_tokens, "lanes": self._session.num_lanes, "error": executed.error}
            _log.debug("step executed", extra={**facts, "device_us": executed.device_us, "idle_us": executed.idle_us})
        if executed.result is None:
            self._metrics.count_failed_step()
        else:
            idle_us = executed.idle_us if self._lanes_were_live else None
            self._metrics.count_step(executed.device_us, idle_us, len(executed.result.token_ids), len(executed.result.lane_errors))
        self._lanes_were_live = self._session.num_lanes > 0


def _undecodable(error: DecodeError) -> str:
    return f"frame: not an ExecuteRequest: {error}"
