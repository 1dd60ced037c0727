"""A session with one worker: what was sent, what was answered, and what the worker must hold."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from control_plane.core.step import Step, WorkerDescription
from control_plane.edge.profiling.profiler import Profiler
from control_plane.edge.worker_link.frames.mirror import LaneMirror
from control_plane.edge.worker_link.frames.requests import heartbeat_frame, log_level_frame, recording_frame, reset_frame, step_frame
from control_plane.edge.worker_link.watchdog import FaultBudget, FaultBudgetSpent, Watchdog
from control_plane.engine.ports import WorkerEvents
from pypto_serving.log.v1 import log_pb2
from pypto_serving.profile.v1 import profile_pb2
from pypto_serving.recording.clock_offset import PeerClock
from pypto_serving.wire.checks import FrameError, is_unknown_kind
from pypto_serving.wire.contract import LOG_LEVELS, RECORDINGS
from pypto_serving.worker.v1 import worker_pb2

_log = logging.getLogger(__name__)


class FrameSink(Protocol):
    """Where frames go."""

    def send(self, frame: worker_pb2.ExecuteRequest) -> None:
        """Queue a frame without waiting."""


class LinkMetrics(Protocol):
    """Receives what happens on the links; every call is made on the engine's event loop and must not block.

    `address` is the host:port that is dialled. Times are in seconds.
    """

    def worker_connected(self, address: str, epoch: int) -> None:
        """A session began; `epoch` is ours at the worker."""

    def worker_disconnected(self, address: str) -> None:
        """The session is over."""

    def worker_forgotten(self, address: str) -> None:
        """The worker is not looked for any more; its series can go."""

    def worker_silence(self, address: str, seconds: float) -> None:
        """Time since the last frame of a worker in session; several times per lease."""

    def step_sent(self, address: str, num_bytes: int) -> None:
        """A step of so many bytes went out."""

    def session_resumed(self, address: str) -> None:
        """The stream broke, and the session went on over a new one."""

    def digest_mismatched(self, address: str) -> None:
        """Both sides disagree on the state after a step, or a result is missing."""

    def worker_reset(self, address: str) -> None:
        """A worker was told to discard everything."""


@dataclass(frozen=True, slots=True)
class LinkContext:
    """Where a link and its session report what happens, and the clock that they read."""

    events: WorkerEvents
    metrics: LinkMetrics
    clock: Callable[[], float]
    profiler: Profiler = field(default_factory=lambda: Profiler("control plane"))


class WorkerSession:
    """The engine's `Worker`. It outlives the stream it runs on; all of it belongs to the engine's event loop.

    joined -- submit --> sent -- result --> acknowledged
      |                    |
      |                    +-- mismatch, gap, step error --> muted -- reset --> resetting -- ResetDone --> joined
      +-- end --> over (whatever the engine still submits is ignored)
    """

    def __init__(self, description: WorkerDescription, watchdog: Watchdog, faults: FaultBudget, context: LinkContext) -> None:
        self._description = description
        self._watchdog = watchdog
        self._faults = faults
        self._events = context.events
        self._metrics = context.metrics
        self._profiler = context.profiler
        self.peer_clock = PeerClock()
        self._mirror = LaneMirror(description)
        self._sink: FrameSink | None = None
        self._sent: deque[tuple[Step, worker_pb2.ExecuteRequest]] = deque()  # steps not answered, and their frames
        self._sent_step_id = 0
        self._acked_step_id = 0
        self._stuck_at: int | None = None
        self._is_joined = False
        self._is_draining = False
        self._is_blank = True  # no step was answered since the worker held nothing
        self._is_muted = False  # nothing that the worker says about steps counts until it was reset
        self._is_resetting = False
        self._is_over = False
        self._fault_spent: FaultBudgetSpent | None = None  # `receive` raises it, not the `reset` in which the engine asked for one

    @property
    def description(self) -> WorkerDescription:
        """What the handshake said."""
        return self._description

    @property
    def is_joined(self) -> bool:
        """Whether the engine knows the session."""
        return self._is_joined

    @property
    def has_work(self) -> bool:
        """Whether the worker owes an answer."""
        return bool(self._sent) or self._is_resetting

    @property
    def is_draining(self) -> bool:
        """Whether the worker has said that it goes."""
        return self._is_draining

    @property
    def acked_step_id(self) -> int:
        """Highest step whose result was received."""
        return self._acked_step_id

    @property
    def watchdog(self) -> Watchdog:
        """The watchdog that hears of every frame."""
        return self._watchdog

    @property
    def process_name(self) -> str:
        """What the worker is called in a trace."""
        return f"worker {self._description.address}"

    @property
    def can_record(self) -> bool:
        """Whether the worker knows recordings, and compares clocks."""
        return RECORDINGS in self._description.features

    def record(self, recording: profile_pb2.Recording) -> None:
        """Tell the worker what is to be recorded between the steps before and after this."""
        self._send(recording_frame(self._description.epoch, recording))
        self.beat()

    @property
    def knows_log_levels(self) -> bool:
        """Whether the worker can be told from which level on to log."""
        return LOG_LEVELS in self._description.features

    def set_log_level(self, change: log_pb2.LevelChange) -> None:
        """Tell the worker from which level on to log."""
        self._send(log_level_frame(self._description.epoch, change))

    def beat(self) -> None:
        """Send a sign of life, with our clock for workers that answer with theirs."""
        self._send(heartbeat_frame(self._description.epoch, self.peer_clock.reading() if self.can_record else None))

    def submit(self, step: Step) -> None:
        """Send a step; its result arrives at `WorkerEvents.step_done`."""
        if self._is_over:
            return
        assert not self._is_resetting, "a worker that is being reset takes no steps"
        assert step.step_id > self._sent_step_id, f"step {step.step_id} after step {self._sent_step_id}"
        frame = step_frame(step, self._description.epoch)
        self._sent.append((step, frame))
        self._sent_step_id = step.step_id
        self._send(frame)
        self._metrics.step_sent(self._description.address, frame.ByteSize())
        if _log.isEnabledFor(logging.DEBUG):
            facts = {
                "step": step.step_id,
                "admitted": len(step.admissions),
                "released": len(step.released_lanes),
                "tokens": step.num_tokens,
            }
            _log.debug("step sent", extra={**self._log_fields, **facts})

    def reset(self, blame: str = "") -> None:
        """Make the worker forget everything; answered by `WorkerEvents.reset_done`. `blame` counts as a result that does not fit."""
        if self._is_over or self._is_resetting:
            return
        if blame:
            try:
                self._faults.count_wrong_result(blame)
            except FaultBudgetSpent as error:
                self._fault_spent = error
        self._sent.clear()
        self._mirror.clear()
        self._is_muted = self._is_resetting = True
        self._metrics.worker_reset(self._description.address)
        self._send(reset_frame(self._description.epoch))

    def open(self, sink: FrameSink, stuck_at: int | None = None) -> None:
        """Begin on a new stream. The engine is told at once or, when the worker hung at progress `stuck_at`, as soon as it moves."""
        self._sink = sink
        self._stuck_at = stuck_at
        if stuck_at is None:
            self._join()

    def can_resume(self, welcome: worker_pb2.Welcome) -> bool:
        """Whether the session goes on after this Welcome."""
        if (welcome.incarnation, welcome.epoch) != (self._description.incarnation, self._description.epoch):
            return False
        if self._is_blank or self._is_resetting:
            return True  # a worker that holds nothing will do
        return welcome.resumed and self._acked_step_id <= welcome.last_step_id <= self._sent_step_id

    def resume(self, sink: FrameSink, welcome: worker_pb2.Welcome) -> None:
        """Go on over a new stream: send again what the worker has not received."""
        self._sink = sink
        self._watchdog.heard()
        self._metrics.session_resumed(self._description.address)
        self._profiler.resumed(self)
        if not self._is_resetting:
            for step, frame in self._sent:
                if step.step_id > welcome.last_step_id:
                    sink.send(frame)
        elif welcome.resumed:
            sink.send(reset_frame(self._description.epoch))
        else:
            self._finish_reset()

    def detach(self) -> None:
        """The stream is gone; what is submitted now waits for the next one."""
        self._sink = None

    def end(self, reason: str) -> None:
        """Finish the session for good."""
        self._is_over = True
        self._sink = None
        self._sent.clear()
        self._profiler.left(self)
        if self._is_joined:
            self._metrics.worker_disconnected(self._description.address)
            self._events.worker_lost(self, reason)

    def receive(self, frame: worker_pb2.ExecuteResponse) -> None:
        """Act on a frame of the worker; raises FrameError for one that has no place here, and FaultBudgetSpent."""
        if frame.epoch != self._description.epoch:
            _log.warning("dropped a frame of epoch %d", frame.epoch, extra=self._log_fields)
            return
        self._watchdog.heard()
        if self._fault_spent:
            raise self._fault_spent
        kind = frame.WhichOneof("frame")
        if kind == "result":
            self._receive_result(frame.result)
        elif kind == "progress":
            self._receive_progress(frame.progress)
        elif kind == "reset_done":
            self._finish_reset()
        elif kind == "spans":
            self._profiler.receive(self, frame.spans)
        elif is_unknown_kind(frame):
            _log.debug("ignored a frame of an unknown kind", extra=self._log_fields)
        else:
            raise FrameError(f"unexpected frame: {kind}")

    @property
    def _log_fields(self) -> dict[str, str]:
        return {"worker": self._description.address}

    def _send(self, frame: worker_pb2.ExecuteRequest) -> None:
        if self._sink is not None:
            self._sink.send(frame)

    def _join(self) -> None:
        self._is_joined = True
        self._profiler.joined(self)
        self._metrics.worker_connected(self._description.address, self._description.epoch)
        self._events.worker_joined(self)

    def _receive_result(self, message: worker_pb2.StepResult) -> None:
        if self._is_muted:
            return
        if message.step_id <= self._acked_step_id:
            _log.warning("dropped another result of step %d", message.step_id, extra=self._log_fields)
            return
        if not self._sent or self._sent[0][0].step_id != message.step_id:
            self._diverge(message.step_id, "not the result that is due")
            return
        try:
            result = self._mirror.follow(self._sent.popleft()[0], message)
        except FrameError as error:
            self._diverge(message.step_id, str(error))
            return
        self._acked_step_id = message.step_id
        self._is_blank = False
        self._watchdog.answered()
        if result.error:
            self._is_muted = True
            self._faults.count_failed_step(result.error)
        else:
            self._faults.count_good_result()
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("step answered", extra={**self._log_fields, "step": message.step_id, "error": result.error})
        self._events.step_done(self, result)

    def _diverge(self, step_id: int, reason: str) -> None:
        _log.error("the worker's state is not ours after step %d: %s", step_id, reason, extra=self._log_fields)
        self._is_muted = True
        self._metrics.digest_mismatched(self._description.address)
        self._faults.count_wrong_result(reason)
        self._events.digest_mismatch(self, step_id)

    def _receive_progress(self, progress: worker_pb2.Progress) -> None:
        self._watchdog.progressed(progress.progress, progress.slowest_unit_us, progress.compiling)
        if progress.HasField("clock"):
            self.peer_clock.heard(progress.clock)
        if not self._is_joined and progress.progress != self._stuck_at:
            self._join()
        if progress.draining and self._is_joined and not self._is_draining:
            self._is_draining = True
            self._events.worker_draining(self)

    def _finish_reset(self) -> None:
        if not self._is_resetting:
            return
        self._is_muted = self._is_resetting = False
        self._is_blank = True
        self._acked_step_id = self._sent_step_id  # nothing more comes of these
        self._watchdog.answered()
        self._events.reset_done(self)
