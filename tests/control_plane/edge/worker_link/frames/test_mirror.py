"""The lanes of a worker as the control plane knows them: what is remembered of a result must not hide what the next one has wrong."""

import pytest
from fakes.worker.strict_worker import describe

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import LaneAdmission, Step, ids
from control_plane.edge.worker_link.frames.mirror import LaneMirror
from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.columns import pack_ids, unpack_ids
from pypto_serving.wire.digest import StateDigest
from pypto_serving.worker.v1 import worker_pb2 as pb


class Lanes:
    """A mirror, and the digest that a worker would send."""

    def __init__(self, *lanes: int) -> None:
        self.mirror, self._digest = LaneMirror(describe()), StateDigest(8, 1)
        self.admissions = [LaneAdmission(lane, 1, ids([5]), 1, 0, 40, 0, ids(), (ids([lane]),), 0, SamplingParams()) for lane in lanes]
        for lane in lanes:
            self._digest.admit(lane, 1, unpack_ids(pack_ids([5]), ""), [unpack_ids(pack_ids([lane]), "")])

    def result(self, lanes: list[int], token_ids: list[int]) -> pb.StepResult:
        self._digest.append(unpack_ids(pack_ids(lanes), ""), unpack_ids(pack_ids(token_ids), ""))
        columns = {"lanes": pack_ids(lanes), "generations": pack_ids([1] * len(lanes)), "token_ids": pack_ids(token_ids)}
        return pb.StepResult(step_id=1, digest=self._digest.value, **columns)


def test_results_of_the_same_lanes_bring_their_own_tokens():
    lanes = Lanes(0, 1)
    first = lanes.mirror.follow(Step(1, 0, admissions=lanes.admissions), lanes.result([0, 1], [7, 8]))
    second = lanes.mirror.follow(Step(2, 1), lanes.result([0, 1], [9, 10]))
    assert (first.tokens, second.tokens) == ({0: 7, 1: 8}, {0: 9, 1: 10})


def test_a_lane_that_was_released_is_a_stranger_in_the_next_result():
    lanes = Lanes(0, 1)
    lanes.mirror.follow(Step(1, 0, admissions=lanes.admissions), lanes.result([0, 1], [7, 8]))
    with pytest.raises(FrameError, match="lane 1 is not live in generation 1"):
        lanes.mirror.follow(Step(2, 1, released_lanes=ids([1])), lanes.result([0, 1], [9, 10]))


def test_a_token_too_few_is_refused_for_lanes_that_are_known():
    lanes = Lanes(0, 1)
    lanes.mirror.follow(Step(1, 0, admissions=lanes.admissions), lanes.result([0, 1], [7, 8]))
    message = lanes.result([0, 1], [9, 10])
    message.token_ids = pack_ids([9])
    with pytest.raises(FrameError, match="lanes 2, generations 2, token_ids 1"):
        lanes.mirror.follow(Step(2, 1), message)
