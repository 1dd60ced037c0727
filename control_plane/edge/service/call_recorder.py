"""What a front end does for its calls, as spans of a recording."""

import time
from collections.abc import Callable, Iterable

from control_plane.edge.service.request_stream import RequestStream
from control_plane.engine.ports import Outputs
from pypto_serving.recording.flows import request_flow
from pypto_serving.recording.recorder import Span, SpanRecorder

_CALLS, _LOOP = "calls", "clients' loop"


class CallRecorder:
    """One row per call; with steps, the deliveries of what passes of the engine brought.

    calls            | call: | admit | stream ... | |
    clients' loop                    | deliver | deliver |
    """

    def __init__(self, recorder: SpanRecorder, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._recorder = recorder
        self.now_ns = clock

    def delivered(self, outputs: Outputs, begin_ns: int) -> None:
        """Output was handed to calls, since `begin_ns`."""
        if self._recorder.has_steps:
            with self._recorder.harmless():
                counts = {"tokens": len(outputs.token_ids), "finished": len(outputs.finished)}
                self._recorder.add(Span("deliver", _LOOP, "", begin_ns, self.now_ns() - begin_ns, (), counts))

    def call_ended(self, stream: RequestStream) -> None:
        """A call is over."""
        with self._recorder.harmless():
            self._add(stream, "ended")

    def add_live(self, streams: Iterable[RequestStream]) -> None:
        """Add the calls that go on when the recording is over."""
        with self._recorder.harmless():
            for stream in streams:
                self._add(stream, "goes on")

    def _add(self, stream: RequestStream, outcome: str) -> None:
        request, now = stream.request, self.now_ns()
        arrival, opened = round(request.arrival_time * 1e9), round(stream.opened_at * 1e9)
        flows = [request_flow(request.request_id, choice.index) for choice in request.choices]
        labels = {"request_id": request.request_id, "outcome": outcome, "traceparent": request.traceparent}
        counts = {"prompt_tokens": len(request.prompt_token_ids), "choices": len(stream.choices)}
        row, add = request.request_id, self._recorder.add
        add(Span("call", _CALLS, row, arrival, now - arrival, flows, counts, labels))
        add(Span("admit", _CALLS, row, arrival, opened - arrival))
        add(Span("stream", _CALLS, row, opened, now - opened))
