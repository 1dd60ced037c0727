"""A runner that has every step computed once more with two steps in flight, as on a device with its own stream, and compares."""

import dataclasses

import numpy as np
from fakes.device.stream import LateCopies, StreamModel

from worker.kv_cache import KVCache
from worker.lanes.step_rules import InvalidStep
from worker.models.model import ForwardModel
from worker.runner import ModelRunner, PendingStep
from worker.step import RunnerLimits, Step, StepResult


class TwinRunner(ModelRunner):
    """Collects at once; its twin, over a cache of its own, collects a step when the next one is launched. Call `finish` at the end."""

    def __init__(self, model: ForwardModel, cache: KVCache, limits: RunnerLimits) -> None:
        super().__init__(model, cache, limits)
        keys, values = (tuple(tensor.clone() for tensor in tensors) for tensors in (cache.keys, cache.values))
        copied = dataclasses.replace(cache, keys=keys, values=values)
        self._twin = ModelRunner(StreamModel(model), copied, limits, copy_to_host=LateCopies())
        self._launched: PendingStep | None = None
        self._last: tuple[PendingStep, StepResult] | None = None

    def launch(self, step: Step) -> PendingStep:
        """As ModelRunner does."""
        try:
            self._launched = self._twin.launch(step)
        except InvalidStep:
            self._launched = None  # `super` refuses it as well
        return super().launch(step)

    def collect(self, pending: PendingStep) -> StepResult:
        """As ModelRunner does."""
        output = super().collect(pending)
        assert self._launched is not None, "the twin refused the step"
        self.finish()
        self._last = self._launched, output
        return output

    def reset(self) -> None:
        """As ModelRunner does."""
        super().reset()
        self._twin.reset()
        self._last = None

    def finish(self) -> None:
        """Compare the last step."""
        if self._last is not None:
            pending, expected = self._last
            self._last = None
            np.testing.assert_equal(dataclasses.asdict(self._twin.collect(pending)), dataclasses.asdict(expected))
