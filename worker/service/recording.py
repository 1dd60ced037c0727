"""Recordings in a worker: begun and ended between two steps, and sent back in small parts beside the results."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

from pypto_serving.profile.v1 import profile_pb2
from pypto_serving.recording.member import RecordingMember
from pypto_serving.recording.recorder import Span, SpanRecorder
from pypto_serving.worker.v1 import worker_pb2 as pb
from worker.service.device_thread import DeviceThread
from worker.service.frame_stream import FrameStream
from worker.step_trace import MakeOperators, StepTrace

#: Between two parts, so that results are not held up by them.
_PAUSE_SECONDS = 0.01
_MAX_PAUSES = 1000


class WorkerRecording:
    """Belongs to the event loop. The control plane on the open stream owns the recording; another one finds none."""

    def __init__(self, device: DeviceThread, incarnation: str, operators: MakeOperators) -> None:
        self._device = device
        self._incarnation = incarnation
        self._operators = operators
        self._member = RecordingMember(self._begin, self._end, self._send)
        self._owner = ""
        self._stream: FrameStream | None = None
        self._trace: StepTrace | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._recorder: SpanRecorder | None = None  # while steps are recorded

    def told(self, recording: profile_pb2.Recording, stream: FrameStream) -> None:
        """Begin or end a recording; raises FrameError."""
        if self._owner != stream.control_plane_id:
            self._member.forget()
        self._owner, self._stream = stream.control_plane_id, stream
        self._member.told(recording)

    @contextmanager
    def spent(self, name: str, step_id: int) -> Iterator[None]:
        """Record what the event loop spends on a step while the block runs."""
        if self._recorder is None:
            yield
            return
        begin_ns = time.monotonic_ns()
        yield
        if self._recorder is not None:
            self._recorder.add(Span(name, "worker loop", "", begin_ns, time.monotonic_ns() - begin_ns, (), {"step": step_id}))

    def _begin(self, recorder: SpanRecorder) -> None:
        if recorder.has_steps:
            self._recorder = recorder
            self._trace = StepTrace(recorder, self._incarnation, self._operators)
            self._device.trace(self._trace)

    def _end(self, recorder: SpanRecorder, done: Callable[[], None]) -> None:
        trace, self._trace, self._recorder = self._trace, None, None
        if trace is None:
            done()
            return
        self._device.trace(None)
        self._start(self._finish(trace, done))

    async def _finish(self, trace: StepTrace, done: Callable[[], None]) -> None:
        await self._device.call(lambda: None)  # behind the steps that are to be recorded
        await asyncio.to_thread(trace.add_operators)
        done()

    def _send(self) -> None:
        if self._stream is not None:
            self._start(self._send_parts(self._stream))

    async def _send_parts(self, stream: FrameStream) -> None:
        """Send part after part, each when the one before is gone; to a stream that takes none the rest is lost. Over another stream all are
        asked for again."""
        num_pauses = 0
        while num_pauses < _MAX_PAUSES and stream is self._stream and (part := self._member.next_part()) is not None:
            stream.send(pb.ExecuteResponse(epoch=stream.epoch, spans=part))
            num_pauses = 0
            while num_pauses < _MAX_PAUSES and not (num_pauses and stream.is_flushed):
                await asyncio.sleep(_PAUSE_SECONDS)
                num_pauses += 1

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
