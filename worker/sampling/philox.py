"""Random numbers as a pure function of seed and place: Philox4x32-10.

Source: Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
"""

import enum

import numpy as np
import numpy.typing as npt

_U64 = npt.NDArray[np.uint64]
Floats64 = npt.NDArray[np.float64]

_NUM_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Purpose(enum.IntEnum):
    """What a random number is for; numbers of different purposes are independent."""

    TOKEN = 0


def philox4x32(counters: _U64, keys: _U64) -> _U64:
    """Four random words for each column: counters [4, N] and keys [2, N] to words [4, N], all below 2**32 and held as uint64."""
    words, key = counters, keys
    for _ in range(_NUM_ROUNDS):
        products = words[0::2] * _MULTIPLIERS
        high, low = products >> _HALF, products & _LOW
        first, second = high[::-1] ^ words[1::2] ^ key
        words = np.stack([first, low[1], second, low[0]])
        key = (key + _KEY_STEPS) & _LOW
    return words


def uniforms(seeds: _U64, indices: npt.NDArray[np.int64], purpose: Purpose) -> Floats64:
    """One number in (0, 1) for each token: key = seed, counter = (index, purpose), the middle of one of 2**32 equal parts."""
    index = indices.astype(np.uint64)
    zero = np.zeros_like(index)
    counters = np.stack([index & _LOW, index >> _HALF, zero + np.uint64(purpose), zero])
    words = philox4x32(counters, np.stack([seeds & _LOW, seeds >> _HALF]))
    middles: Floats64 = (words[0].astype(np.float64) + 0.5) * 2.0**-32
    return middles
