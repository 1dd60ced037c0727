import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving.wire.columns import pack_ids
from pypto_serving.wire.generations import MAX_GENERATION, generation_fields, generation_of, pack_generations, unpack_generations
from pypto_serving.worker.v1 import worker_pb2 as pb


@given(st.lists(st.integers(0, MAX_GENERATION)))
def test_columns_keep_every_bit(generations: list[int]) -> None:
    assert unpack_generations(*pack_generations(np.array(generations, dtype=np.int64))).tolist() == generations


@given(st.integers(0, MAX_GENERATION))
def test_messages_keep_every_bit(generation: int) -> None:
    for message in (pb.LaneAdmission, pb.LaneError, pb.PromptTokenLogprobs):
        assert generation_of(message(**generation_fields(generation))) == generation


def test_below_two_to_the_32_frames_are_those_of_peers_that_know_no_more() -> None:
    assert pack_generations(np.array([1, 2**32 - 1])) == (pack_ids([1, 2**32 - 1]), b"")
    assert pb.LaneError(**generation_fields(2**32 - 1)) == pb.LaneError(generation=2**32 - 1)


def test_columns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="generations and generations_high have 2 and 1 entries"):
        unpack_generations(pack_ids([1, 2]), pack_ids([1]))
