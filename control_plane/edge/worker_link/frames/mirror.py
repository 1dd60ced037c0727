"""What a worker's lanes must look like after each step, as the control plane knows it."""

import numpy as np

from control_plane.core.step import StepResult, WorkerDescription
from control_plane.edge.worker_link.frames.due_logprobs import DueLogprobs
from control_plane.edge.worker_link.frames.frame_error import FrameError
from control_plane.edge.worker_link.frames.results import SampledColumns, failed_result, sampled_columns, step_result
from pypto_serving.wire.columns import unpack_ids
from pypto_serving.wire.digest import StateDigest
from pypto_serving.wire.generations import generation_of
from pypto_serving.worker.v1 import worker_pb2


class LaneMirror:
    """Follows a worker's lanes step by step: what a step changed is applied when its result arrives, then what it sampled."""

    def __init__(self, limits: WorkerDescription) -> None:
        self._limits = limits
        self._digest = StateDigest(limits.max_lanes, len(limits.cache_groups))
        self._generations = np.zeros(limits.max_lanes, dtype=np.int64)  # -1: free
        self._due = DueLogprobs()
        self.clear()

    def clear(self) -> None:
        """Forget every lane."""
        self._digest.clear()
        self._generations[:] = -1
        self._due.clear()

    def follow(self, step: worker_pb2.Step, message: worker_pb2.StepResult) -> StepResult:
        """Apply a step and its result, and read the latter; raises FrameError when it is not what such a step brings."""
        if message.error:
            return failed_result(message)
        self._apply(step)
        self._due.run(step, failed=self._failed_lanes(message))
        sampled = sampled_columns(message, self._limits)
        self._take(sampled)
        if message.digest != self._digest.value:
            raise FrameError("the digests differ")
        return step_result(message, sampled, self._due, self._limits)

    def _apply(self, step: worker_pb2.Step) -> None:
        if step.released_lanes:
            self._release(step)
        for admission in step.admissions:
            self._admit(admission)
        if step.trimmed_lanes:
            self._digest.trim(
                unpack_ids(step.trimmed_lanes, "trimmed_lanes"),
                unpack_ids(step.trimmed_groups, "trimmed_groups"),
                unpack_ids(step.trimmed_entries, "trimmed_entries"),
            )
        if step.grown_lanes:
            self._digest.grow(
                unpack_ids(step.grown_lanes, "grown_lanes"),
                unpack_ids(step.grown_groups, "grown_groups"),
                unpack_ids(step.grown_pages, "grown_pages"),
            )

    def _take(self, sampled: SampledColumns) -> None:
        if not len(sampled.lanes):
            return
        strangers = np.flatnonzero(self._generations[sampled.lanes] != sampled.generations)
        if len(strangers):
            lane, generation = int(sampled.lanes[strangers[0]]), int(sampled.generations[strangers[0]])
            raise FrameError(f"lanes: lane {lane} is not live in generation {generation}")
        self._digest.append(sampled.lanes, sampled.token_ids)

    def _failed_lanes(self, message: worker_pb2.StepResult) -> set[int]:
        errors = ((error.lane, generation_of(error)) for error in message.lane_errors if error.lane < len(self._generations))
        return {lane for lane, generation in errors if self._generations[lane] == generation}

    def _release(self, step: worker_pb2.Step) -> None:
        lanes = unpack_ids(step.released_lanes, "released_lanes")
        self._digest.release(lanes)
        self._generations[lanes] = -1
        self._due.release(lanes.tolist())

    def _admit(self, admission: worker_pb2.LaneAdmission) -> None:
        lane = admission.lane
        assert self._generations[lane] < 0, f"lane {lane} is admitted while it is live"
        generation = self._generations[lane] = generation_of(admission)
        token_ids = unpack_ids(admission.token_ids, "token_ids")
        tables = [unpack_ids(table.page_ids, "page_ids") for table in admission.page_tables]
        self._digest.admit(lane, generation, token_ids, tables)
        self._due.admit(admission, token_ids)
