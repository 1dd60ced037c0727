"""A runner without a model."""

import threading

import numpy as np

from pypto_serving.wire.columns import Ids
from worker.step import StepInput, StepOutput


class FakeRunner:
    """Answers every admitted lane with token 7 and remembers what it was asked for.

    `gate` holds back steps while it is clear; `failing` names steps that raise.
    """

    def __init__(self) -> None:
        self.steps: list[StepInput] = []
        self.threads: set[str] = set()
        self.num_resets = 0
        self.failing: set[int] = set()
        self.reset_fails = False
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    @property
    def step_ids(self) -> list[int]:
        """Ids of the steps that were executed."""
        return [step.step_id for step in self.steps]

    def execute(self, step: StepInput) -> StepOutput:
        """Sample token 7 on every lane that the step admits."""
        self.steps.append(step)
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(30)
        if step.step_id in self.failing:
            raise ValueError(f"step {step.step_id} is cursed")
        lanes = [admission.lane for admission in step.admissions]
        generations = [admission.generation for admission in step.admissions]
        return StepOutput(step.step_id, _column(lanes), _column(generations), _column([7] * len(lanes)), digest=step.step_id)

    def reset(self) -> None:
        """Count resets."""
        self.num_resets += 1
        if self.reset_fails:
            raise RuntimeError("device lost")


def _column(values: list[int]) -> Ids:
    return np.array(values, dtype=np.uint32)
