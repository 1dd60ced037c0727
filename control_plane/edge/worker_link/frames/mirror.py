"""What a worker's lanes must look like after each step, as the control plane knows it."""

from collections.abc import Sequence

import numpy as np

from control_plane.edge.worker_link.frames.frame_error import FrameError
from control_plane.edge.worker_link.frames.results import SampledColumns
from pypto_serving.wire.columns import unpack_ids
from pypto_serving.wire.digest import StateDigest
from pypto_serving.worker.v1 import worker_pb2


class LaneMirror:
    """Follows a worker's lanes step by step: what a step changed is applied when its result arrives, then what it sampled."""

    def __init__(self, num_lanes: int, num_groups: int) -> None:
        self._digest = StateDigest(num_lanes, num_groups)
        self._generations = np.zeros(num_lanes, dtype=np.int64)  # -1: free
        self._prompts: dict[int, Sequence[int]] = {}
        self.clear()

    @property
    def digest(self) -> int:
        """Digest of the state."""
        return self._digest.value

    @property
    def prompts(self) -> dict[int, Sequence[int]]:
        """Prompt tokens of the lanes that report them."""
        return self._prompts

    def clear(self) -> None:
        """Forget every lane."""
        self._digest.clear()
        self._generations[:] = -1
        self._prompts.clear()

    def apply(self, step: worker_pb2.Step) -> None:
        """Apply what a step releases, admits, trims and grows."""
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

    def take(self, sampled: SampledColumns) -> None:
        """Append the tokens that a step sampled; raises FrameError when a lane is not live in that generation."""
        if not len(sampled.lanes):
            return
        strangers = np.flatnonzero(self._generations[sampled.lanes] != sampled.generations)
        if len(strangers):
            lane, generation = int(sampled.lanes[strangers[0]]), int(sampled.generations[strangers[0]])
            raise FrameError(f"lanes: lane {lane} is not live in generation {generation}")
        self._digest.append(sampled.lanes, sampled.token_ids)

    def _release(self, step: worker_pb2.Step) -> None:
        lanes = unpack_ids(step.released_lanes, "released_lanes")
        self._digest.release(lanes)
        self._generations[lanes] = -1
        for lane in self._prompts.keys() & set(lanes.tolist()):
            del self._prompts[lane]

    def _admit(self, admission: worker_pb2.LaneAdmission) -> None:
        lane = admission.lane
        assert self._generations[lane] < 0, f"lane {lane} is admitted while it is live"
        self._generations[lane] = admission.generation
        token_ids = unpack_ids(admission.token_ids, "token_ids")
        tables = [unpack_ids(table.page_ids, "page_ids") for table in admission.page_tables]
        self._digest.admit(lane, admission.generation, token_ids, tables)
        if admission.sampling.HasField("prompt_logprobs"):
            self._prompts[lane] = token_ids[: admission.num_prompt_tokens].tolist()
