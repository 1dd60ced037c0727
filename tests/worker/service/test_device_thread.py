import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fakes.device.runner import FakeRunner

from pypto_serving.recording.recorder import Level, RecordingLimits, SpanRecorder
from worker.progress import ProgressCounter
from worker.service.device_thread import DeviceThread, ExecutedStep
from worker.step import Step
from worker.step_trace import StepTrace


class Listener:
    """Collects what the device thread tells."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[ExecutedStep | int | str] = asyncio.Queue()

    def step_executed(self, executed: ExecutedStep) -> None:
        self.heard.put_nowait(executed)

    def reset_done(self, era: int) -> None:
        self.heard.put_nowait(era)

    def device_failed(self, message: str) -> None:
        self.heard.put_nowait(message)

    async def next(self) -> ExecutedStep | int | str:
        async with asyncio.timeout(30):
            return await self.heard.get()


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def progress() -> ProgressCounter:
    return ProgressCounter()


@pytest_asyncio.fixture
async def device(runner: FakeRunner, progress: ProgressCounter) -> AsyncIterator[DeviceThread]:
    device = DeviceThread(progress)
    yield device
    runner.gate.set()
    assert device.stop(timeout_seconds=30)


@pytest_asyncio.fixture
async def listener(device: DeviceThread, runner: FakeRunner) -> Listener:
    listener = Listener()
    device.serve(runner, listener)
    return listener


async def test_jobs_run_on_the_device_thread(device: DeviceThread) -> None:
    assert await device.call(lambda: threading.current_thread().name) == "device"


async def test_job_that_raises_leaves_the_thread_alive(device: DeviceThread) -> None:
    with pytest.raises(ZeroDivisionError):
        await device.call(lambda: 1 // 0)
    assert await device.call(lambda: 7) == 7


async def test_steps_are_executed_in_order(device: DeviceThread, listener: Listener) -> None:
    for step_id in (1, 2, 3):
        device.submit(Step(step_id))
    done = [await listener.next() for _ in range(3)]
    assert [(step.step_id, step.error, step.result.step_id) for step in done] == [(1, "", 1), (2, "", 2), (3, "", 3)]
    assert all(step.device_us >= 0 and step.idle_us >= 0 for step in done)


async def test_step_after_a_failed_one_is_not_executed_until_a_reset(
    device: DeviceThread, listener: Listener, runner: FakeRunner, caplog: pytest.LogCaptureFixture
) -> None:
    runner.failing = {1}
    device.submit(Step(1))
    device.submit(Step(2))
    errors = [(await listener.next()).error for _ in range(2)]
    assert errors == ["ValueError: step 1 is cursed", "not executed, as step 1 failed: ValueError: step 1 is cursed"]
    assert "Traceback" in caplog.text and "Traceback" not in "".join(errors)
    device.reset(era=1)
    device.submit(Step(3))
    assert await listener.next() == 1
    assert (await listener.next()).error == ""
    assert runner.step_ids == [1, 3]


async def test_reset_drops_steps_that_have_not_begun(device: DeviceThread, listener: Listener, runner: FakeRunner) -> None:
    runner.gate.clear()
    device.submit(Step(1))
    device.submit(Step(2))
    assert await asyncio.to_thread(runner.entered.wait, 30)
    device.reset(era=1)
    runner.gate.set()
    begun = await listener.next()
    assert (begun.era, begun.step_id) == (0, 1)
    assert await listener.next() == 1
    assert (runner.step_ids, runner.num_resets) == ([1], 1)


async def test_busy_lasts_until_all_is_done(device: DeviceThread, listener: Listener, runner: FakeRunner) -> None:
    assert not device.busy
    runner.gate.clear()
    device.submit(Step(1))
    assert await asyncio.to_thread(runner.entered.wait, 30)
    device.submit(Step(2))
    device.reset(era=1)
    assert device.busy
    runner.gate.set()
    await listener.next(), await listener.next()
    assert not device.busy


async def test_failing_reset_is_told(device: DeviceThread, listener: Listener, runner: FakeRunner) -> None:
    runner.reset_fails = True
    device.reset(era=1)
    assert await listener.next() == "the device cannot be reset: RuntimeError: device lost"


async def test_every_step_is_progress(device: DeviceThread, listener: Listener, progress: ProgressCounter) -> None:
    before = progress.count
    device.submit(Step(1))
    await listener.next()
    assert progress.count == before + 1


@pytest_asyncio.fixture
async def streaming(runner: FakeRunner, listener: Listener) -> AsyncIterator[FakeRunner]:
    """A runner whose device has a stream of its own."""
    runner.has_stream = True
    yield runner
    for step_id in range(10):
        runner.ready[step_id].set()


async def _launched(runner: FakeRunner, count: int = 1) -> None:
    for _ in range(count):
        assert await asyncio.to_thread(runner.launched.acquire, timeout=30)


async def test_next_step_is_launched_while_one_is_pending(device: DeviceThread, listener: Listener, streaming: FakeRunner) -> None:
    device.submit(Step(1))
    device.submit(Step(2))
    await _launched(streaming, 2)
    assert device.busy and listener.heard.empty()
    streaming.ready[1].set()
    assert (await listener.next()).step_id == 1
    device.submit(Step(3))
    await _launched(streaming)
    streaming.ready[2].set(), streaming.ready[3].set()
    done = [await listener.next() for _ in range(2)]
    assert [(step.step_id, step.error, step.result.step_id, step.idle_us) for step in done] == [(2, "", 2, 0), (3, "", 3, 0)]
    assert not device.busy


async def test_third_step_waits_for_the_first(device: DeviceThread, listener: Listener, streaming: FakeRunner) -> None:
    for step_id in (1, 2, 3):
        device.submit(Step(step_id))
    await _launched(streaming, 2)
    assert streaming.step_ids == [1, 2]
    streaming.ready[1].set()
    await _launched(streaming)
    assert (await listener.next()).step_id == 1 and streaming.step_ids == [1, 2, 3]


async def test_step_that_cannot_be_launched_fails_behind_the_one_that_is_pending(
    device: DeviceThread, listener: Listener, streaming: FakeRunner
) -> None:
    streaming.failing = {2}
    device.submit(Step(1))
    device.submit(Step(2))
    await _launched(streaming)
    streaming.ready[1].set()
    assert [(await listener.next()).error for _ in range(2)] == ["", "ValueError: step 2 is cursed"]


async def test_step_behind_one_that_went_wrong_on_the_device_is_void(
    device: DeviceThread, listener: Listener, streaming: FakeRunner
) -> None:
    streaming.failing_late = {1}
    for step_id in (1, 2):
        device.submit(Step(step_id))
        streaming.ready[step_id].set()
    errors = [(await listener.next()).error for _ in range(2)]
    assert errors[0] == "RuntimeError: step 1 went wrong" and errors[1].endswith(" as step 1 failed: RuntimeError: step 1 went wrong")
    device.reset(era=1)
    assert await listener.next() == 1


async def test_reset_drops_a_step_that_is_pending(device: DeviceThread, listener: Listener, streaming: FakeRunner) -> None:
    device.submit(Step(1))
    await _launched(streaming)
    device.reset(era=1)
    device.submit(Step(2))
    assert await listener.next() == 1
    streaming.ready[1].set(), streaming.ready[2].set()
    done = await listener.next()
    assert (done.era, done.step_id, done.error) == (1, 2, "") and not device.busy


@pytest.mark.parametrize(("file", "compiles"), [("/lib/pypto/frontend/parser/entry.py", True), ("/lib/other/entry.py", False)])
async def test_a_kernel_that_is_being_compiled_is_seen(
    device: DeviceThread, runner: FakeRunner, listener: Listener, file: str, compiles: bool
) -> None:
    compiler: dict[str, Any] = {"gate": runner.gate, "entered": runner.entered}
    exec(compile("def compile():\n entered.set()\n gate.wait(30)", file, "exec"), compiler)
    launch = runner.launch
    runner.launch = lambda step: compiler["compile"]() or launch(step)  # type: ignore[method-assign]
    runner.gate.clear()
    assert not device.is_compiling
    device.submit(Step(1))
    assert await asyncio.to_thread(runner.entered.wait, 30)
    assert device.is_compiling == compiles
    runner.gate.set()
    await listener.next()
    assert not device.is_compiling


class Operators:
    """Of a library that stands still when it is stopped, and fails then; with `starts_slowly` when it is started."""

    def __init__(self, starts_slowly: bool = False) -> None:
        self.stopping, self.may_stop = threading.Event(), threading.Event()
        self._starts_slowly = starts_slowly

    def start(self) -> None:
        if self._starts_slowly:
            self._stand_still()

    def stop(self) -> None:
        self._stand_still()
        raise RuntimeError("it cannot be stopped")

    def _stand_still(self) -> None:
        self.stopping.set()
        assert self.may_stop.wait(30)

    def add_to(self, recorder: SpanRecorder, num_steps: int) -> None:
        """It has seen nothing."""


async def test_a_profiler_that_stands_still_and_fails_holds_up_no_result_and_ends_no_thread(
    device: DeviceThread, listener: Listener
) -> None:
    operators, recorder = Operators(), SpanRecorder("a", RecordingLimits(Level.OPERATORS, 60.0, 100))
    device.trace(StepTrace(recorder, "worker-1", lambda level: operators, max_operator_steps=1))
    device.submit(Step(1))
    device.submit(Step(2))
    assert await asyncio.to_thread(operators.stopping.wait, 30)
    assert (await listener.next()).step_id == 1
    assert device.busy and device.is_compiling
    operators.may_stop.set()
    assert (await listener.next()).error == ""
    device.trace(None)
    assert not await device.call(lambda: device.is_compiling)
    assert recorder.notes == ["no operators: RuntimeError: it cannot be stopped"]


async def _go_on(operators: Operators, listener: Listener) -> tuple[ExecutedStep, float]:
    """Let what stands still go on; returns the next step, and the microseconds until it was heard of."""
    assert await asyncio.to_thread(operators.stopping.wait, 30)
    await asyncio.sleep(0.05)
    went_on_ns = time.perf_counter_ns()
    operators.may_stop.set()
    executed = await listener.next()
    return executed, (time.perf_counter_ns() - went_on_ns) / 1000


async def test_a_profiler_that_stands_still_at_its_end_counts_in_no_step(
    device: DeviceThread, listener: Listener, streaming: FakeRunner
) -> None:
    operators, recorder = Operators(), SpanRecorder("a", RecordingLimits(Level.OPERATORS, 60.0, 100))
    device.trace(StepTrace(recorder, "worker-1", lambda level: operators, max_operator_steps=1))
    device.submit(Step(1))
    device.submit(Step(2))
    await _launched(streaming, 2)
    streaming.ready[1].set(), streaming.ready[2].set()
    assert (await listener.next()).step_id == 1
    executed, micros = await _go_on(operators, listener)
    assert executed.step_id == 2 and executed.device_us <= micros


async def test_a_profiler_that_stands_still_at_its_beginning_is_no_idle_time(device: DeviceThread, listener: Listener) -> None:
    operators, recorder = Operators(starts_slowly=True), SpanRecorder("a", RecordingLimits(Level.OPERATORS, 60.0, 100))
    device.trace(StepTrace(recorder, "worker-1", lambda level: operators))
    device.submit(Step(1))
    executed, micros = await _go_on(operators, listener)
    assert executed.idle_us <= micros
