"""A front end as far as its link to the scheduler goes: calls that submit requests and keep what comes."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from fakes.control_plane.front_end_calls import Call, FrontEndCalls
from fakes.control_plane.session_engine import VOCAB_SIZE

from control_plane.edge.profiling.profiler import LocalRecorder
from control_plane.edge.scheduler_link.link import SchedulerLink
from control_plane.edge.scheduler_link.options import FrontEndNumbers, FrontEndSide, SchedulerLinkOptions
from control_plane.engine.ports import GenerationRequest, Outputs
from pypto_serving.log.v1 import log_pb2
from pypto_serving.recording.recorder import SpanRecorder


def _record_nothing(recorder: SpanRecorder | None) -> None:
    pass


class LinkedFrontEnd:
    """Dials from the start."""

    def __init__(
        self,
        addresses: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        active_clock: Callable[[], float] = time.monotonic,
        record: LocalRecorder = _record_nothing,
        **options: Any,
    ) -> None:
        self.calls = FrontEndCalls()
        self.num_drains = 0
        self.log_levels: list[int] = []
        self.numbers = FrontEndNumbers()
        self.metrics = b"series 1\n"
        self.trouble: list[Exception] = []  # of the calls
        pauses = {"min_pause_seconds": 0.002, "max_pause_seconds": 0.01, "heartbeat_seconds": 0.02}
        defaults = {"front_end_id": "front end", "model_fingerprint": "model", "vocab_size": VOCAB_SIZE, **pauses}
        self.link = SchedulerLink(
            SchedulerLinkOptions(addresses, **{**defaults, **options}),
            FrontEndSide(self._deliver, self._count_drain, lambda: self.numbers, lambda: self.metrics, record, self._note_level),
            clock,
            active_clock,
        )
        self.link.start()

    def submit(self, request: GenerationRequest) -> Call:
        """Submit a request."""
        call = self.calls.add(request)
        self.link.submit(request)
        return call

    async def close(self) -> None:
        await self.link.close()
        assert not self.trouble, self.trouble
        assert not self.link.failed.done(), self.link.failed

    def _deliver(self, outputs: Outputs) -> None:
        try:
            self.calls.deliver(outputs)
        except Exception as error:  # which the event loop would only log
            self.trouble.append(error)

    def _note_level(self, change: log_pb2.LevelChange) -> None:
        self.log_levels.append(change.level)

    def _count_drain(self) -> None:
        self.num_drains += 1
