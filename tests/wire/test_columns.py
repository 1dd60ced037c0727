import pytest

from pypto_serving.wire.columns import pack_floats, pack_ids, unpack_floats, unpack_ids


def test_columns_are_little_endian() -> None:
    assert pack_ids([1, 2**32 - 1]) == b"\x01\0\0\0\xff\xff\xff\xff"
    assert pack_floats([1.0]) == b"\0\0\x80\x3f"


def test_columns_round_trip() -> None:
    assert unpack_ids(pack_ids([0, 7, 2**32 - 1]), "lanes").tolist() == [0, 7, 2**32 - 1]
    assert unpack_floats(pack_floats([0.5, -2.0]), "values").tolist() == [0.5, -2.0]


def test_a_torn_column_is_named() -> None:
    with pytest.raises(ValueError, match="lanes: 3 bytes"):
        unpack_ids(b"abc", "lanes")
    with pytest.raises(ValueError, match="values: 3 bytes"):
        unpack_floats(b"abc", "values")


@pytest.mark.parametrize("value", [-1, 2**32])
def test_what_fits_no_uint32_is_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        pack_ids([value])
