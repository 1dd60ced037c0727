"""A process that records when it is told to, and hands over what it has recorded when it is asked."""

import asyncio
from collections import deque
from collections.abc import Callable

from pypto_serving.profile.v1 import profile_pb2 as pb
from pypto_serving.recording.frames import KEEP_SECONDS, encode_spans, nothing_recorded, read_recording
from pypto_serving.recording.recorder import SpanRecorder

#: Until it is asked for, and two minutes more until all of it is sent.
_KEEP_SECONDS = KEEP_SECONDS + 120.0


class RecordingMember:
    """Belongs to one event loop.

    idle --told--> records --its time is over, or told--> ends --`end` is done--> over --asked--> hands over
      ^                                                                            |                  |
      '----------------------- it has been over for long enough ------------------+------------------'

    Asked again, it hands over all of it again: what was sent may be lost with a stream.
    """

    def __init__(
        self,
        begin: Callable[[SpanRecorder], None],
        end: Callable[[SpanRecorder, Callable[[], None]], None],
        ready: Callable[[], None],
        keep_seconds: float = _KEEP_SECONDS,
    ) -> None:
        """`begin` and `end` are called when a recording begins and ends, `end` with what to call when no more spans come; `ready` is
        called when there are parts to be taken. What is over is kept for `keep_seconds`."""
        self._begin = begin
        self._end = end
        self._ready = ready
        self._keep_seconds = keep_seconds
        self._recorder: SpanRecorder | None = None
        self._runs = False
        self._is_complete = False
        self._is_asked = False
        self._parts: deque[pb.Spans] = deque()
        self._encoding: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def told(self, recording: pb.Recording) -> None:
        """Begin, or end and hand over; raises FrameError. What was told before is not told again."""
        limits = read_recording(recording)
        known = self._recorder is not None and self._recorder.recording_id == recording.id
        if recording.is_over:
            self._hand_over(recording.id, known)
        elif not known:
            self.forget()
            self._recorder, self._runs, self._is_complete, self._is_asked = SpanRecorder(recording.id, limits), True, False, False
            self._begin(self._recorder)
            self._timer = asyncio.get_running_loop().call_later(limits.max_seconds, self._stop)

    def next_part(self) -> pb.Spans | None:
        """The next part to be sent; None while there is none."""
        return self._parts.popleft() if self._parts else None

    def forget(self) -> None:
        """Record no more, and hand nothing over: nobody is there who asks."""
        self._stop()
        if self._timer:
            self._timer.cancel()
        self._recorder = None
        self._send_no_more()

    def _hand_over(self, recording_id: str, known: bool) -> None:
        if known:
            self._is_asked = True
            self._stop()
            self._hand_over_if_complete()
        else:
            self._parts = deque([nothing_recorded(recording_id, "it knows nothing of the recording: it came later, or lost its session")])
            self._ready()

    def _stop(self) -> None:
        recorder = self._recorder
        if not self._runs or recorder is None:
            return
        self._runs = False
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._keep_seconds, self.forget)
        self._end(recorder, lambda: self._completed(recorder))

    def _completed(self, recorder: SpanRecorder) -> None:
        if recorder is self._recorder:
            self._is_complete = True
            self._hand_over_if_complete()

    def _hand_over_if_complete(self) -> None:
        if self._is_asked and self._is_complete and self._recorder:
            self._is_asked = False
            self._send_no_more()  # asked again: all of it is sent again, and the rest of the last time not before it
            self._encoding = asyncio.get_running_loop().create_task(self._encode(self._recorder))

    def _send_no_more(self) -> None:
        if self._encoding:
            self._encoding.cancel()
        self._parts = deque()

    async def _encode(self, recorder: SpanRecorder) -> None:
        self._parts = await asyncio.to_thread(deque, encode_spans(recorder))
        self._ready()
