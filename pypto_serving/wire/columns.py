"""Columns of the worker protocol: packed little-endian arrays in `bytes` fields.

Generations of lanes are 64 bits, of which messages and columns carry the upper 32 in fields of their own, absent while they are zero.
"""

from array import array
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pypto_serving.wire.checks import FrameError, check_below, check_finite

U32 = np.dtype("<u4")
F32 = np.dtype("<f4")

#: A page table entry that left the window of a sliding cache group.
NO_PAGE = 0xFFFFFFFF

#: Both sides keep generations as int64.
MAX_GENERATION = 2**63 - 1

#: From here on numpy is faster, which takes some microseconds to begin.
_SHORT_BYTES = 1024 * U32.itemsize

Ids = npt.NDArray[np.uint32]
Places = npt.NDArray[np.intp]  # ids in the form with which numpy indexes fastest
Floats = npt.NDArray[np.float32]
Generations = npt.NDArray[np.int64]


def pack_ids(values: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """Pack integers from 0 below 2**32; raises OverflowError for any other in a sequence, while an array is cast."""
    if isinstance(values, np.ndarray):
        return values.astype(U32, copy=False).tobytes()
    return array("I", values).tobytes()  # faster where there are few of them


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


def unpack_column(column: bytes, field: str, limit: int) -> "array[int]":
    """As `unpack_ids_below`, into an array of the standard library: for what is walked through, and quickly where it is short."""
    values = array("I")
    is_short = len(column) <= _SHORT_BYTES and not len(column) % U32.itemsize
    if is_short:
        values.frombytes(column)
    if not is_short or max(values, default=0) >= limit:
        values = array("I", unpack_ids_below(column, field, limit).tobytes())
    return values


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


class HasGeneration(Protocol):
    """A message about a lane in a generation."""

    @property
    def generation(self) -> int:
        """The lower 32 bits."""

    @property
    def generation_high(self) -> int:
        """The upper 32 bits."""


def generation_of(message: HasGeneration) -> int:
    """The whole generation that a message names."""
    return message.generation_high << 32 | message.generation


def generation_fields(generation: int) -> dict[str, int]:
    """The fields of such a message."""
    return {"generation": generation & 0xFFFFFFFF, "generation_high": generation >> 32}


def pack_generations(generations: npt.NDArray[np.integer]) -> tuple[bytes, bytes]:
    """The columns of the lower and of the upper 32 bits; the second one is empty while it would be zero."""
    high = np.asarray(generations, dtype=np.int64) >> 32
    return pack_ids(np.asarray(generations, dtype=np.int64) & 0xFFFFFFFF), pack_ids(high) if high.any() else b""


def unpack_generations(low: bytes, high: bytes) -> Generations:
    """Both columns joined; raises FrameError when they are no columns, or differ in length though neither is empty."""
    generations = unpack_ids(low, "generations").astype(np.int64)
    if high:
        upper = unpack_ids(high, "generations_high").astype(np.int64)
        if len(upper) != len(generations):
            raise FrameError(f"generations and generations_high have {len(generations)} and {len(upper)} entries")
        generations |= upper << 32
    return generations
