"""What a worker's lanes must look like after each step, as the control plane knows it."""

from collections.abc import Sequence

import numpy as np

from control_plane.core.step import Step, StepResult, WorkerDescription
from control_plane.edge.worker_link.frames.results import (
    DueLogprobs,
    SampledLanes,
    failed_result,
    sampled_lanes,
    sampled_tokens,
    step_result,
)
from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.columns import U32, Ids, generation_of
from pypto_serving.wire.digest import StateDigest
from pypto_serving.worker.v1 import worker_pb2


class LaneMirror:
    """Follows a worker's lanes step by step: what a step changed is applied when its result arrives, then what it sampled."""

    def __init__(self, limits: WorkerDescription) -> None:
        self._limits = limits
        self._digest = StateDigest(limits.max_lanes, len(limits.cache_groups))
        self._generations = np.zeros(limits.max_lanes, dtype=np.int64)  # -1: free
        self._due = DueLogprobs()
        self._sampled_key: tuple[bytes, bytes, bytes] | None = None  # the columns that `_sampled` was read from; None: to be read again
        self._sampled: SampledLanes
        self.clear()

    def clear(self) -> None:
        """Forget every lane."""
        self._digest.clear()
        self._generations[:] = -1
        self._due.clear()
        self._sampled_key = None

    def follow(self, step: Step, message: worker_pb2.StepResult) -> StepResult:
        """Apply a step and its result, and read the latter; raises FrameError when it is not what such a step brings."""
        if message.error:
            return failed_result(message)
        self._apply(step)
        self._due.run(step, self._failed(message) if message.lane_errors else set())
        sampled = self._sampled_lanes(message)
        token_ids = sampled_tokens(message, sampled, self._limits)
        if len(token_ids):
            self._digest.append(sampled.places, token_ids)
        if message.digest != self._digest.value:
            raise FrameError("the digests differ")
        return step_result(message, sampled, token_ids, self._due, self._limits)

    def _failed(self, message: worker_pb2.StepResult) -> set[int]:
        errors = ((error.lane, generation_of(error)) for error in message.lane_errors if error.lane < len(self._generations))
        return {lane for lane, generation in errors if self._generations[lane] == generation}

    def _sampled_lanes(self, message: worker_pb2.StepResult) -> SampledLanes:
        """The lanes that a step sampled of. Most steps sample of those of the step before, which are known to be right."""
        key = (message.lanes, message.generations, message.generations_high)
        if key != self._sampled_key:
            self._sampled_key = None
            self._sampled = sampled_lanes(message, self._limits)
            self._check_live(self._sampled)
            self._sampled_key = key
        return self._sampled

    def _check_live(self, sampled: SampledLanes) -> None:
        strangers = np.flatnonzero(self._generations[sampled.places] != sampled.generations)
        if len(strangers):
            lane, generation = int(sampled.lanes[strangers[0]]), int(sampled.generations[strangers[0]])
            raise FrameError(f"lanes: lane {lane} is not live in generation {generation}")

    def _apply(self, step: Step) -> None:
        if step.released_lanes or step.admissions:
            self._sampled_key = None
        if step.released_lanes:
            self._digest.release(_array(step.released_lanes))
            self._generations[_array(step.released_lanes)] = -1
            self._due.release(step.released_lanes)
        for admission in step.admissions:
            lane, tables = admission.lane, [_array(table) for table in admission.page_tables]
            assert self._generations[lane] < 0, f"lane {lane} is admitted while it is live"
            self._generations[lane] = admission.generation
            self._digest.admit(lane, admission.generation, _array(admission.token_ids), tables)
            self._due.admit(admission)
        if step.trimmed_lanes:
            self._digest.trim(_array(step.trimmed_lanes), _array(step.trimmed_groups), _array(step.trimmed_entries))
        if step.grown_lanes:
            self._digest.grow(_array(step.grown_lanes), _array(step.grown_groups), _array(step.grown_pages))


def _array(column: Sequence[int]) -> Ids:
    """The same memory as an array, unless the machine is big-endian."""
    return np.asarray(column, dtype=U32)
