"""Refuses requests early, and has streams gather their output, while there is too much to do."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from control_plane.edge.service.errors import ResourceExhausted
from control_plane.engine.options import EngineOptions
from control_plane.engine.snapshot import EngineSnapshot
from pypto_serving.inference.v1 import inference_pb2

_LOOK_SECONDS = 0.05

#: A loop that is later than this, or whose thread works for more than this share of the time, has streams gather their output for longer;
#: one that has more time than the second share lets them gather less.
_LATE_SECONDS, _BUSY_SHARE, _FREE_SHARE = 0.004, 0.7, 0.5

#: How the window of streams begins, grows and shrinks from look to look.
_FIRST_WINDOW_SECONDS, _GROWTH, _SHRINKAGE = 0.005, 1.5, 0.8

#: From here on new calls are refused.
_REFUSED_SECONDS = 1.0


class LagMetrics(Protocol):
    """What is counted."""

    def observe_loop_lag(self, seconds: float) -> None:
        """A timer ran so late."""

    def observe_delta_window(self, seconds: float) -> None:
        """Streams gather output for so long now."""

    def observe_late_refusal(self) -> None:
        """A call was refused."""


class LoopLag:
    """How late the clients' event loop runs, and what follows from it. Belongs to that loop."""

    def __init__(self, metrics: LagMetrics, max_window_seconds: float) -> None:
        self._metrics = metrics
        self._max_window_seconds = max_window_seconds
        self._was_late = False
        self.seconds = 0.0  # lately
        self.window_seconds = 0.0  # for which streams gather output

    async def watch(self) -> None:
        """Look every 50 ms until cancelled."""
        while True:
            start, thread_start, process_start = time.monotonic(), time.thread_time(), time.process_time()
            await asyncio.sleep(_LOOK_SECONDS)
            passed = time.monotonic() - start
            self.observe(max(0.0, passed - _LOOK_SECONDS), time.process_time() - process_start)
            self.adapt_window((time.thread_time() - thread_start) / passed)

    def observe(self, seconds: float, cpu_seconds: float) -> None:
        """Note how late a timer ran: it counts in full at once, and half as much with each later one.

        Of a timer that is late for once no more counts than the process has worked meanwhile: it may have been stopped.
        """
        counted = seconds if self._was_late else min(seconds, cpu_seconds)
        self._was_late = seconds > _REFUSED_SECONDS
        self._metrics.observe_loop_lag(counted)
        self.seconds = max(counted, self.seconds / 2)

    def adapt_window(self, busy_share: float) -> None:
        """Let streams gather output for longer or shorter, by what the loop had to do lately."""
        if busy_share > _BUSY_SHARE or self.seconds > _LATE_SECONDS:
            self.window_seconds = min(max(_FIRST_WINDOW_SECONDS, self.window_seconds * _GROWTH), self._max_window_seconds)
        elif busy_share < _FREE_SHARE:
            shrunk = self.window_seconds * _SHRINKAGE
            self.window_seconds = shrunk if shrunk >= _FIRST_WINDOW_SECONDS else 0.0
        self._metrics.observe_delta_window(self.window_seconds)

    def require_room(self) -> None:
        """Raise ResourceExhausted when the loop runs so late that a new call would wait for each of its steps."""
        if self.seconds > _REFUSED_SECONDS:
            self._metrics.observe_late_refusal()
            retry = 2 * self.seconds
            raise ResourceExhausted(
                f"the server is overloaded: it runs {self.seconds:.1f} s late, limit {_REFUSED_SECONDS:g} s; retry in {retry:.1f} s", retry
            )


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
