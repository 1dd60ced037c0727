"""A runner without a model."""

import threading
from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np

from pypto_serving.wire.columns import Ids
from worker.step import Step, StepResult


@dataclass(eq=False)
class FakePending:
    """A step that was launched; it is ready when `ready` is set."""

    output: StepResult
    is_ready: bool
    ready: threading.Event

    def wait(self) -> None:
        """Wait for `ready`."""
        assert self.ready.wait(30)


class FakeRunner:
    """Answers every admitted lane with token 7 and remembers what it was asked for.

    `gate` holds back steps while it is clear; `failing` names steps that raise. With `has_stream` a step is pending until its event in
    `ready` is set, and `failing_late` names steps that raise when they are collected.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.threads: set[str] = set()
        self.num_resets = 0
        self.failing: set[int] = set()
        self.reset_fails = False
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.has_stream = False
        self.failing_late: set[int] = set()
        self.ready: dict[int, threading.Event] = defaultdict(threading.Event)
        self.launched = threading.Semaphore(0)
        self.pending: deque[FakePending] = deque()

    @property
    def step_ids(self) -> list[int]:
        """Ids of the steps that were executed."""
        return [step.step_id for step in self.steps]

    def launch(self, step: Step) -> FakePending:
        """Sample token 7 on every lane that the step admits."""
        assert len(self.pending) <= 1
        self.steps.append(step)
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(30)
        if step.step_id in self.failing:
            raise ValueError(f"step {step.step_id} is cursed")
        lanes = [admission.lane for admission in step.admissions]
        generations = [admission.generation for admission in step.admissions]
        tokens = _column([7] * len(lanes))
        output = StepResult(step.step_id, _column(lanes), np.array(generations, dtype=np.int64), tokens, digest=step.step_id)
        self.pending.append(FakePending(output, not self.has_stream, self.ready[step.step_id]))
        self.launched.release()
        return self.pending[-1]

    def collect(self, pending: FakePending) -> StepResult:
        """What was sampled."""
        assert pending is self.pending[0]
        if not pending.is_ready:
            pending.wait()
        self.pending.popleft()
        if pending.output.step_id in self.failing_late:
            raise RuntimeError(f"step {pending.output.step_id} went wrong")
        return pending.output

    def reset(self) -> None:
        """Count resets."""
        self.pending.clear()
        self.num_resets += 1
        if self.reset_fails:
            raise RuntimeError("device lost")


def _column(values: list[int]) -> Ids:
    return np.array(values, dtype=np.uint32)
