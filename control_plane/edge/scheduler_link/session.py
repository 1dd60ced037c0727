"""One session with a scheduler: what goes out and what comes in, until it ends."""

import asyncio
import logging
import math
import time
from collections.abc import Callable

import grpc.aio

from control_plane.edge.scheduler_link import commands
from control_plane.edge.scheduler_link.live_requests import LiveRequests
from control_plane.edge.scheduler_link.options import FrontEndSide, SchedulerLinkOptions
from control_plane.edge.scheduler_link.outputs import read_outputs, read_refused, read_state
from control_plane.edge.scheduler_link.stream import LossCause, SessionLost, SessionStream
from control_plane.engine.snapshot import EngineSnapshot, RefusedWorker
from pypto_serving.recording.clock_offset import PeerClock
from pypto_serving.recording.member import RecordingMember
from pypto_serving.recording.recorder import SpanRecorder
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.checks import FrameError, is_unknown_kind

_log = logging.getLogger(__name__)

#: Submissions in one message stay below this, so that the loop breathes while thousands of requests change over to another scheduler.
_MAX_SUBMISSION_BYTES = 256 * 1024


class Session:
    """Belongs to the clients' event loop. One coroutine reads, one writes; what comes while a frame is written goes into the next one."""

    def __init__(
        self,
        stream: SessionStream,
        options: SchedulerLinkOptions,
        requests: LiveRequests,
        front_end: FrontEndSide,
        clock: Callable[[], float] = time.monotonic,
        active_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._options = options
        self._requests = requests
        self._front_end = front_end
        self._clock = clock
        self._active_clock = active_clock
        self._commands: list[pb.Command] = []
        self._writable = asyncio.Event()
        self._is_beat_due = True
        self._metrics_due = 0.0
        self._num_silent_beats = 0
        self._silent = asyncio.Event()
        self._peer_clock = PeerClock()
        self._recording = RecordingMember(front_end.record, self._end_recording, self._writable.set)
        self.snapshot: EngineSnapshot | None = None  # the latest numbers of the engine
        self.snapshot_time = -math.inf
        self.refused_workers: list[RefusedWorker] = []

    @property
    def address(self) -> str:
        """The scheduler's."""
        return self._stream.address

    @property
    def channel(self) -> grpc.aio.Channel:
        """The connection."""
        return self._stream.channel

    async def run(self) -> None:
        """Read and write to the end of the session; raises SessionLost and FrameError."""
        self._writable.set()
        tasks = [asyncio.create_task(work) for work in (self._read(), self._write(), self._wait_for_silence())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._recording.forget()
            await self._stream.close()

    async def leave(self) -> None:
        """Say that nothing comes any more, upon which the scheduler ends the session; it ends our requests then."""
        await self._stream.end_writing()

    def command(self, command: pb.Command) -> None:
        """Leave a command for the writer."""
        self._commands.append(command)
        self._writable.set()

    def wake(self) -> None:
        """There are requests that were not sent yet."""
        self._writable.set()

    def beat(self) -> None:
        """Show a sign of life. Silence is counted in our own beats: while this process was stopped nobody could be heard."""
        options = self._options
        self._num_silent_beats += 1
        if self._num_silent_beats * options.heartbeat_seconds > options.max_silence_seconds:
            self._silent.set()
        self._is_beat_due = True
        self._writable.set()

    async def _wait_for_silence(self) -> None:
        await self._silent.wait()
        raise SessionLost(f"the scheduler was silent for {self._options.max_silence_seconds:g} s")

    def _end_recording(self, recorder: SpanRecorder, done: Callable[[], None]) -> None:
        self._front_end.record(None)
        done()

    # What goes out

    async def _write(self) -> None:
        while True:
            await self._writable.wait()
            self._writable.clear()
            while (frame := self._next_frame()) is not None:
                if not await self._stream.write(frame):
                    return

    def _next_frame(self) -> pb.ConnectRequest | None:
        if self._is_beat_due:
            self._is_beat_due = False
            return pb.ConnectRequest(state=self._state())
        coming, self._commands = self._commands, []
        num_bytes = 0
        while num_bytes < _MAX_SUBMISSION_BYTES and (live := self._requests.pop_unsent()):
            command = commands.submission(live, self._clock())
            num_bytes += command.ByteSize()
            coming.append(command)
            if live.is_held:
                coming.append(pb.Command(hold=live.request.request_id))
        if coming:
            return pb.ConnectRequest(commands=pb.Commands(commands=coming))
        spans = self._recording.next_part()
        return pb.ConnectRequest(spans=spans) if spans else None

    def _state(self) -> pb.FrontEndState:
        numbers, now = self._front_end.numbers(), self._clock()
        state = pb.FrontEndState(
            num_calls=numbers.num_calls,
            num_held_back=numbers.num_held_back,
            num_unwritten_bytes=numbers.num_unwritten_bytes,
            clock=self._peer_clock.reading(),
        )
        if self._front_end.metrics and now >= self._metrics_due:
            self._metrics_due = now + self._options.metrics_seconds
            state.metrics = self._front_end.metrics()
        return state

    # What comes in

    async def _read(self) -> None:
        while True:
            frame = await self._stream.read()
            self._num_silent_beats = 0
            match frame.WhichOneof("frame"):
                case "passes":
                    for message in frame.passes.passes:
                        self._take_in(message)
                case "state":
                    self.snapshot, self.snapshot_time = read_state(frame.state), self._active_clock()
                    self.refused_workers = read_refused(frame.state)
                    self._peer_clock.heard(frame.state.clock)
                case "recording":
                    self._recording.told(frame.recording)
                case "log_level":
                    self._front_end.set_log_level(frame.log_level)
                case "drain":
                    self._front_end.drained()
                case "farewell":
                    raise SessionLost("the scheduler goes", LossCause.FAREWELL)
                case None if is_unknown_kind(frame):
                    _log.debug("frame of an unknown kind ignored")
                case kind:
                    kinds = "passes, state, drain, farewell, recording or log_level"
                    raise FrameError(f"frame: {kind or 'not set'}; after Welcome it is {kinds}")

    def _take_in(self, message: pb.Outputs) -> None:
        outputs = read_outputs(message, self._options.vocab_size, self._requests.prompt_of)
        self._front_end.deliver_soon(self._requests.take_in(outputs, self._clock()))
