"""A worker in the process of the engine: the same frames, without a wire between the planes."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from control_plane.core.step import Step, WorkerDescription
from control_plane.edge.worker_link.frames.mirror import LaneMirror
from control_plane.edge.worker_link.frames.requests import step_frame
from control_plane.edge.worker_link.frames.welcome import describe
from control_plane.engine.ports import WorkerEvents
from pypto_serving.wire.contract import PROTOCOL_VERSION
from pypto_serving.worker.v1 import worker_pb2
from worker.config import read_config
from worker.loaded_runner import LoadedRunner, load_runner
from worker.progress import ProgressCounter
from worker.service.frames import decode_step, encode_result, encode_welcome
from worker.step import StepResult


class LocalWorker:
    """Implements ports.Worker with a runner on a thread of its own, which the caller's `executor` is."""

    def __init__(self, loaded: LoadedRunner, executor: ThreadPoolExecutor, events: WorkerEvents, name: str = "local") -> None:
        self._runner = loaded.runner
        self._executor = executor
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._limits = loaded.describe(name, max_steps_in_flight=2, lease_seconds=10.0)
        welcome = encode_welcome(self._limits, PROTOCOL_VERSION, epoch=1, resumed=False, last_step_id=0)
        self._description = describe(name, welcome)
        self._num_resets = 0
        self._mirror = LaneMirror(self._description)

    @property
    def description(self) -> WorkerDescription:
        return self._description

    def submit(self, step: Step) -> None:
        self._executor.submit(self.compute, step, step_frame(step, epoch=1).step, self._num_resets)

    def reset(self, blame: str = "") -> None:
        self._num_resets += 1
        self._mirror.clear()
        self._executor.submit(self._reset)

    def _reset(self) -> None:
        self._runner.reset()
        self._loop.call_soon_threadsafe(self._events.reset_done, self)

    def compute(self, step: Step, frame: worker_pb2.Step, num_resets: int) -> None:
        """Execute a step and deliver what came of it; on the executor's thread."""
        self.deliver(step, self._runner.execute(decode_step(frame, self._limits)), num_resets)

    def deliver(self, step: Step, output: StepResult, num_resets: int) -> None:
        """Let the engine know, unless the worker was reset since; on any thread."""
        self._loop.call_soon_threadsafe(self._deliver, step, encode_result(output, device_us=0, idle_us=0), num_resets)

    def _deliver(self, step: Step, message: worker_pb2.StepResult, num_resets: int) -> None:
        if num_resets != self._num_resets:
            return
        self._events.step_done(self, self._mirror.follow(step, message))


def load_local_runner(model: Path, flags: Sequence[str] = ()) -> LoadedRunner:
    """Load a runner as `python -m worker --model MODEL FLAGS` does; to be called on the thread that will own the device."""
    return load_runner(read_config(["--model", str(model), "--device", "cpu", *flags]), ProgressCounter())
