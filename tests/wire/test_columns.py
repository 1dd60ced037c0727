from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.columns import (
    MAX_GENERATION,
    generation_fields,
    generation_of,
    pack_floats,
    pack_generations,
    pack_ids,
    unpack_column,
    unpack_floats,
    unpack_generations,
    unpack_ids,
)
from pypto_serving.worker.v1 import worker_pb2 as pb


def test_columns_are_little_endian() -> None:
    assert pack_ids([1, 2**32 - 1]) == b"\x01\0\0\0\xff\xff\xff\xff"
    assert pack_floats([1.0]) == b"\0\0\x80\x3f"


def test_columns_round_trip() -> None:
    assert unpack_ids(pack_ids([0, 7, 2**32 - 1]), "lanes").tolist() == [0, 7, 2**32 - 1]
    assert unpack_floats(pack_floats([0.5, -2.0]), "values").tolist() == [0.5, -2.0]


@pytest.mark.parametrize("count", [0, 1, 1024, 1025])
def test_a_column_that_is_walked_through_is_checked_alike_short_or_long(count: int) -> None:
    values = [*range(count)]
    assert unpack_column(pack_ids(values), "ids", count) == array("I", values)
    with pytest.raises(FrameError) as torn:
        unpack_column(pack_ids(values) + b"x", "ids", count)
    assert str(torn.value) == f"ids: {4 * count + 1} bytes are not a whole number of uint32"
    with pytest.raises(FrameError, match="ids"):
        unpack_column(pack_ids([*values, count]), "ids", count)


def test_a_torn_column_is_named() -> None:
    with pytest.raises(ValueError, match="lanes: 3 bytes"):
        unpack_ids(b"abc", "lanes")
    with pytest.raises(ValueError, match="values: 3 bytes"):
        unpack_floats(b"abc", "values")


@pytest.mark.parametrize("value", [-1, 2**32])
def test_what_fits_no_uint32_is_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        pack_ids([value])


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
