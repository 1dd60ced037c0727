"""Generations of lanes are 64 bits, of which messages and columns carry the upper 32 in fields of their own, absent while they are zero."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.columns import pack_ids, unpack_ids

#: Both sides keep them as int64.
MAX_GENERATION = 2**63 - 1

Generations = npt.NDArray[np.int64]


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
