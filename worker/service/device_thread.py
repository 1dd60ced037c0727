"""The one thread that owns the device."""

import asyncio
import concurrent.futures
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from worker.progress import ProgressCounter
from worker.step import Step, StepResult
from worker.step_trace import StepTrace

_log = logging.getLogger(__name__)

_COMPILER = "/pypto/frontend/"  # where PyPTO's kernels are compiled, at their first call with a new shape

T = TypeVar("T")
PendingT = TypeVar("PendingT", bound="Pending")


class Pending(Protocol):
    """A step that was launched."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be collected without waiting, from the beginning."""

    def wait(self) -> None:
        """Wait until it can be; the one call that another thread makes."""


class StepRunner(Protocol[PendingT]):
    """Executes steps on the device. All calls are made on the device thread; any exception fails the step as a whole."""

    def launch(self, step: Step) -> PendingT:
        """Begin one step; at most one before it is not collected."""

    def collect(self, pending: PendingT) -> StepResult:
        """What came of the oldest step that was launched."""

    def reset(self) -> None:
        """Forget every lane and page, and what was launched."""


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """A step that the device is through with: its result, or why there is none."""

    era: int
    step_id: int
    result: StepResult | None
    error: str
    device_us: int
    idle_us: int


@dataclass(frozen=True, slots=True, eq=False)
class _Launched:
    """A step on the device."""

    era: int
    step: Step
    pending: Pending
    begin_ns: int
    idle_us: int


class DeviceListener(Protocol):
    """Hears from the device thread, on the event loop."""

    def step_executed(self, executed: ExecutedStep) -> None:
        """A step was executed or has failed; steps come in order."""

    def reset_done(self, era: int) -> None:
        """The device holds nothing of the eras before `era`."""

    def device_failed(self, message: str) -> None:
        """The device cannot be reset any more."""


class DeviceThread:
    """Runs everything that touches the device, in order, on one thread.

    `call`, `submit`, `reset` and `busy` belong to the event loop; names that start with `_on_device` run on the thread. A step that fails
    makes the steps after it fail unexecuted, until a reset. A reset drops the steps of earlier eras that have not begun.

    Where a step is still pending when it was launched, a second thread waits for it, so that the next step can be launched meanwhile: two
    are on the device while the control plane keeps up.
    """

    def __init__(self, progress: ProgressCounter) -> None:
        self._progress = progress
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._on_device_run, name="device", daemon=True)
        self._num_submitted = 0
        self._num_finished = 0
        self._failure = ""
        self._launched: deque[_Launched] = deque()
        self._trace: StepTrace | None = None
        self._awaited: SimpleQueue[_Launched | None] | None = None  # made with the thread that waits
        self._idle_since_ns = time.perf_counter_ns()
        self._thread.start()
        self.era = 0

    @property
    def busy(self) -> bool:
        """Whether steps or resets wait or are being executed."""
        return self._num_submitted != self._num_finished

    @property
    def is_compiling(self) -> bool:
        """Whether the thread is in the compiler of a kernel, as its stack says: PyPTO reports no compilation. A profiler that begins or
        ends counts too: no step can end meanwhile, and nothing hangs."""
        if (trace := self._trace) is not None and trace.is_switching:
            return True
        frame = sys._current_frames().get(self._thread.ident or 0) if self.busy else None
        while frame is not None:
            if frame.f_code.co_name == "compile" and _COMPILER in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False

    async def call(self, job: Callable[[], T]) -> T:
        """Run `job` on the device thread and return or raise what it does."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._queue.put(partial(_run_job, job, future))
        return await asyncio.wrap_future(future)

    def serve(self, runner: StepRunner[Any], listener: DeviceListener) -> None:
        """Take steps from now on; called once, on the event loop that `listener` is to be told on."""
        self._runner = runner
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._idle_since_ns = time.perf_counter_ns()

    def submit(self, step: Step) -> None:
        """Queue a step of the present era."""
        self._num_submitted += 1
        self._queue.put(partial(self._on_device_execute, self.era, step))

    def reset(self, era: int) -> None:
        """Begin `era`: drop what is queued, forget lanes and pages."""
        assert era > self.era, (era, self.era)
        self.era = era
        self._num_submitted += 1
        self._queue.put(partial(self._on_device_reset, era))

    def trace(self, trace: StepTrace | None) -> None:
        """Tell `trace` of the steps that are submitted from now on, and the one before of no more."""
        self._queue.put(partial(self._on_device_trace, trace))

    def stop(self, timeout_seconds: float) -> bool:
        """End the thread after the step it executes; returns whether it ended within the time. What is queued is dropped."""
        self.era += 1
        self._queue.put(None)
        if self._awaited is not None:
            self._awaited.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _on_device_run(self) -> None:
        while (item := self._queue.get()) is not None:
            item()

    def _on_device_execute(self, era: int, step: Step) -> None:
        if era != self.era:
            self._num_finished += 1
            return
        while len(self._launched) > 1:
            self._on_device_collect()
        begin_ns = time.perf_counter_ns()
        idle_us = 0 if self._launched else (begin_ns - self._idle_since_ns) // 1000
        if self._failure:
            self._report(ExecutedStep(era, step.step_id, None, f"not executed, as {self._failure}", 0, idle_us))
            return
        if not self._launched:
            self._progress.begin()
        try:
            pending = self._runner.launch(step)
        except Exception as exception:
            self._on_device_collect_all()
            self._on_device_fail(era, step.step_id, exception, begin_ns, idle_us)
            return
        self._launched.append(_Launched(era, step, pending, begin_ns, idle_us))
        if pending.is_ready:
            self._on_device_collect_all()
        else:
            self._collect_when_ready(self._launched[-1])

    def _on_device_collect_until(self, launched: _Launched) -> None:
        """Collect what was launched up to a step that is ready now; it may have been collected or dropped meanwhile."""
        while launched in self._launched:
            self._on_device_collect()

    def _on_device_collect_all(self) -> None:
        while self._launched:
            self._on_device_collect()

    def _on_device_collect(self) -> None:
        launched = self._launched.popleft()
        if self._failure:
            self._report(ExecutedStep(launched.era, launched.step.step_id, None, f"void, as {self._failure}", 0, launched.idle_us))
            return
        # The device was busy with the step before for a part of the time.
        begin_ns = max(launched.begin_ns, self._idle_since_ns)
        try:
            result = self._runner.collect(launched.pending)
            assert result.step_id == launched.step.step_id, (result.step_id, launched.step.step_id)
        except Exception as exception:
            self._on_device_fail(launched.era, launched.step.step_id, exception, begin_ns, launched.idle_us)
            return
        device_us = self._on_device_spent(begin_ns)
        ended_ns = time.monotonic_ns()
        self._report(ExecutedStep(launched.era, launched.step.step_id, result, "", device_us, launched.idle_us))
        if self._trace is not None:  # behind the report: a profiler may take seconds to end
            self._trace.executed(launched.step, result, ended_ns, device_us * 1000)
            self._idle_since_ns = time.perf_counter_ns()  # meanwhile the device was neither at work nor did it wait for a step

    def _on_device_fail(self, era: int, step_id: int, exception: Exception, begin_ns: int, idle_us: int) -> None:
        _log.error("step failed", extra={"step": step_id}, exc_info=exception)
        error = f"{type(exception).__name__}: {exception}"
        self._failure = self._failure or f"step {step_id} failed: {error}"
        self._report(ExecutedStep(era, step_id, None, error, self._on_device_spent(begin_ns), idle_us))

    def _on_device_spent(self, begin_ns: int) -> int:
        """Microseconds since `begin_ns`; the device has nothing to do, or the next step, from now on."""
        self._progress()
        self._idle_since_ns = time.perf_counter_ns()
        return (self._idle_since_ns - begin_ns) // 1000

    def _report(self, executed: ExecutedStep) -> None:
        self._num_finished += 1
        self._call_listener(self._listener.step_executed, executed)

    def _collect_when_ready(self, launched: _Launched) -> None:
        """Have it collected as soon as it is ready."""
        if self._awaited is None:
            self._awaited = SimpleQueue()
            threading.Thread(target=self._wait_for_steps, args=(self._awaited,), name="device-results", daemon=True).start()
        self._awaited.put(launched)

    def _wait_for_steps(self, awaited: "SimpleQueue[_Launched | None]") -> None:
        while (launched := awaited.get()) is not None:
            with suppress(Exception):  # which comes up again when the step is collected
                launched.pending.wait()
            self._queue.put(partial(self._on_device_collect_until, launched))

    def _on_device_trace(self, trace: StepTrace | None) -> None:
        self._on_device_collect_all()
        if self._trace is not None:
            self._trace.end()
        self._trace = trace
        if trace is not None:
            trace.begin()
        self._idle_since_ns = time.perf_counter_ns()

    def _on_device_reset(self, era: int) -> None:
        self._progress.begin()
        self._num_finished += len(self._launched)
        self._launched.clear()
        try:
            self._runner.reset()
        except Exception as exception:
            _log.exception("reset failed")
            self._call_listener(self._listener.device_failed, f"the device cannot be reset: {type(exception).__name__}: {exception}")
            return
        self._failure = ""
        self._progress()
        self._num_finished += 1
        self._idle_since_ns = time.perf_counter_ns()
        self._call_listener(self._listener.reset_done, era)

    def _call_listener(self, method: Callable[[T], None], argument: T) -> None:
        try:
            self._loop.call_soon_threadsafe(method, argument)
        except RuntimeError:
            _log.debug("the event loop is closed")


def _run_job(job: Callable[[], T], future: concurrent.futures.Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job())
    except BaseException as exception:
        future.set_exception(exception)
