"""Columns of the worker protocol: packed little-endian arrays in `bytes` fields."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pypto_serving.wire.checks import FrameError, check_below, check_finite

U32 = np.dtype("<u4")
F32 = np.dtype("<f4")

#: A page table entry that left the window of a sliding cache group.
NO_PAGE = 0xFFFFFFFF

Ids = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]


def pack_ids(values: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """Pack integers from 0 below 2**32; raises OverflowError for any other in a sequence, while an array is cast."""
    return np.asarray(values, dtype=U32).tobytes()


def unpack_ids(column: bytes, field: str) -> Ids:
    """Unpack a column of uint32 (a read-only view); raises FrameError naming `field` when the length does not fit."""
    if len(column) % U32.itemsize:
        raise FrameError(f"{field}: {len(column)} bytes are not a whole number of uint32")
    return np.frombuffer(column, dtype=U32)


def unpack_ids_below(column: bytes, field: str, limit: int) -> Ids:
    """Unpack a column of uint32 below `limit`; raises FrameError naming `field`."""
    ids = unpack_ids(column, field)
    check_below(field, ids, limit)
    return ids


def pack_floats(values: Sequence[float] | npt.NDArray[np.floating]) -> bytes:
    """Pack float32 values."""
    return np.asarray(values, dtype=F32).tobytes()


def unpack_floats(column: bytes, field: str) -> Floats:
    """Unpack a column of float32 (a read-only view); raises FrameError naming `field` when the length does not fit."""
    if len(column) % F32.itemsize:
        raise FrameError(f"{field}: {len(column)} bytes are not a whole number of float32")
    return np.frombuffer(column, dtype=F32)


def unpack_finite(column: bytes, field: str) -> Floats:
    """Unpack a column of finite float32; raises FrameError naming `field`."""
    values = unpack_floats(column, field)
    check_finite(field, values)
    return values
