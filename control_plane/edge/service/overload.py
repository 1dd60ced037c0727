"""Refuses requests early, and slows streams down, while there is too much to do."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from control_plane.edge.service.errors import ResourceExhausted
from control_plane.engine.options import EngineOptions
from control_plane.engine.snapshot import EngineSnapshot
from pypto_serving.inference.v1 import inference_pb2

#: From here on streams pause between two writes for as long as the loop is late, but no longer than the second number: what comes meanwhile
#: is joined, so that fewer messages are left to write, and the loop has time for new calls.
_PACED_SECONDS, _MAX_PAUSE_SECONDS = 0.02, 0.5

#: From here on new calls are refused.
_REFUSED_SECONDS = 1.0


class LagMetrics(Protocol):
    """What is counted."""

    def observe_loop_lag(self, seconds: float) -> None:
        """A timer ran so late."""

    def observe_paced_write(self) -> None:
        """A stream paused."""

    def observe_late_refusal(self) -> None:
        """A call was refused."""


class LoopLag:
    """How late the clients' event loop runs, and what follows from it. Belongs to that loop."""

    def __init__(self, metrics: LagMetrics) -> None:
        self._metrics = metrics
        self.seconds = 0.0  # lately

    def observe(self, seconds: float) -> None:
        """Note how late a timer ran: it counts in full at once, and half as much with each later one."""
        self._metrics.observe_loop_lag(seconds)
        self.seconds = max(seconds, self.seconds / 2)

    def require_room(self) -> None:
        """Raise ResourceExhausted when the loop runs so late that a new call would wait for each of its steps."""
        if self.seconds > _REFUSED_SECONDS:
            self._metrics.observe_late_refusal()
            retry = 2 * self.seconds
            raise ResourceExhausted(
                f"the server is overloaded: it runs {self.seconds:.1f} s late, limit {_REFUSED_SECONDS:g} s; retry in {retry:.1f} s", retry
            )

    async def pace(self) -> None:
        """Wait between two writes of a stream while the loop is late."""
        if self.seconds > _PACED_SECONDS:
            self._metrics.observe_paced_write()
            await asyncio.sleep(min(self.seconds, _MAX_PAUSE_SECONDS))


class LoadShedder:
    """Refuses requests that the engine would refuse, before anything is tokenized, compiled or replayed for them.

    Counts the choices of requests on their way to the engine, and goes by its latest snapshot, which may be some tenths of a second old;
    the engine decides in the end. Belongs to the clients' event loop.
    """

    def __init__(self, options: EngineOptions, snapshot: Callable[[], EngineSnapshot], lag: LoopLag) -> None:
        self._options = options
        self._snapshot = snapshot
        self._lag = lag
        self._num_coming = 0

    @contextmanager
    def reserve(self, spec: inference_pb2.GenerationSpec) -> Iterator[None]:
        """Count a request as coming while the block admits it; raises ResourceExhausted when the queue is full, or the loop too late."""
        self._lag.require_room()
        num_choices = (spec.resume.effective.n if spec.HasField("resume") else spec.n) or 1
        self._require_room(num_choices, spec.HasField("resume"))
        self._num_coming += num_choices
        try:
            yield
        finally:
            self._num_coming -= num_choices

    async def pace(self) -> None:
        """Wait between two writes of a stream while the loop is late: requests that come need it too."""
        await self._lag.pace()

    def _require_room(self, num_choices: int, is_resume: bool) -> None:
        snapshot, (max_requests, max_tokens) = self._snapshot(), self._options.queue_limits(is_resume)
        # What has no worker is counted apart, as in the engine; whether this one has is not known yet.
        num_waiting, num_tokens = snapshot.num_waiting_for_capacity, snapshot.num_waiting_tokens - snapshot.num_stranded_tokens
        ahead = num_waiting + self._num_coming
        if ahead and ahead + num_choices > max_requests:
            self._refuse(f"{ahead} sequences wait or are about to, {num_choices} would come, limit {max_requests}", snapshot)
        if num_waiting and num_tokens >= max_tokens:
            self._refuse(f"{num_tokens} tokens wait, limit {max_tokens}", snapshot)

    @staticmethod
    def _refuse(overflow: str, snapshot: EngineSnapshot) -> None:
        retry = snapshot.retry_after_seconds
        raise ResourceExhausted(f"queue is full: {overflow}; retry in {retry:.1f} s", retry)
