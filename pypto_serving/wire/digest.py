"""Hash of a worker's lanes, kept on both sides of the link and compared after every step.

The digest is the sum, modulo 2**64, of one hash per fact: this lane, in this generation, has this token at this index; has this page at
this index of this cache group; lost so many leading pages of that group. A sum can be kept incrementally, forgets a lane by one
subtraction, and is computed for a whole column at once. The mixing function is the finalizer of splitmix64
(Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pypto_serving.wire.columns import Ids, Places

_KINDS = np.array([1, 2, 3], dtype=np.uint64)
_TOKEN, _PAGE, _TRIM = range(3)  # places in it

_MASK = 2**64 - 1

_U64 = npt.NDArray[np.uint64]


# Arrays without dimensions: with them an operation on a short column takes half of the time that it takes with scalars.
_HALF, _FIRST_SHIFT, _SECOND_SHIFT, _THIRD_SHIFT, _ONE = (np.array(bits, dtype=np.uint64) for bits in (32, 30, 27, 31, 1))
_FIRST_FACTOR, _SECOND_FACTOR = (np.array(factor, dtype=np.uint64) for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _mix(x: _U64) -> _U64:
    y = x >> _FIRST_SHIFT
    y ^= x
    y *= _FIRST_FACTOR
    y ^= y >> _SECOND_SHIFT
    y *= _SECOND_FACTOR
    y ^= y >> _THIRD_SHIFT
    return y


def _pair(high: npt.ArrayLike, low: npt.ArrayLike) -> _U64:
    return (np.asarray(high, dtype=np.uint64) << _HALF) | np.asarray(low, dtype=np.uint64)


class StateDigest:
    """Digest of up to `num_lanes` lanes with `num_groups` cache groups. Not thread-safe."""

    def __init__(self, num_lanes: int, num_groups: int) -> None:
        self._keys = [np.zeros(num_lanes, dtype=np.uint64) for _ in _KINDS]  # of a lane in its generation, for each kind of fact
        self._sums = np.zeros(num_lanes, dtype=np.uint64)
        self._num_tokens = np.zeros(num_lanes, dtype=np.uint64)
        self._num_pages = np.zeros((num_lanes, num_groups), dtype=np.uint64)
        self._total = 0

    @property
    def value(self) -> int:
        """The digest, in [0, 2**64)."""
        return self._total

    def admit(self, lane: int, generation: int, token_ids: Ids, page_tables: Sequence[Ids]) -> None:
        """Add a lane with its known tokens and one page table per cache group."""
        high, low = generation >> 32, generation & 0xFFFFFFFF
        key = _mix(_pair([lane], [low]) ^ _mix(np.array([high], dtype=np.uint64)))  # _mix(0) is 0
        for keys, kind_key in zip(self._keys, _mix(key + _KINDS), strict=True):
            keys[lane] = kind_key
        self._num_tokens[lane] = len(token_ids)
        self._num_pages[lane] = [len(pages) for pages in page_tables]
        tables = [_pair(group, np.arange(len(pages))) for group, pages in enumerate(page_tables)]
        token_facts = self._facts(lane, _TOKEN, np.arange(len(token_ids)), token_ids)
        page_facts = self._facts(lane, _PAGE, np.concatenate(tables), np.concatenate(page_tables))
        added = int(token_facts.sum(dtype=np.uint64)) + int(page_facts.sum(dtype=np.uint64)) & _MASK
        self._sums[lane] = added
        self._total = self._total + added & _MASK

    def append(self, lanes: Ids | Places, token_ids: Ids) -> None:
        """Append one token to each of `lanes`, in which no lane occurs twice."""
        facts = self._facts(lanes, _TOKEN, self._num_tokens[lanes], token_ids)
        self._sums[lanes] += facts
        self._count(facts)
        self._num_tokens[lanes] += _ONE

    def grow(self, lanes: Ids, groups: Ids, pages: Ids) -> None:
        """Append one page to the table (`lanes[i]`, `groups[i]`) for each i, in order."""
        places = lanes.astype(np.intp) * self._num_pages.shape[1] + groups
        num_pages = self._num_pages.reshape(-1)  # the same memory
        ranks = num_pages[places]
        if len(set(places.tolist())) < len(places):
            order = np.argsort(places, kind="stable")
            first = np.searchsorted(places[order], places[order], side="left")
            ranks[order] += (np.arange(len(places)) - first).astype(np.uint64)
        self._add(lanes, _PAGE, _pair(groups, ranks), pages)
        np.add.at(num_pages, places, _ONE)

    def trim(self, lanes: Ids, groups: Ids, num_entries: Ids) -> None:
        """Note that the first `num_entries[i]` entries of the table (`lanes[i]`, `groups[i]`) are NO_PAGE now."""
        self._add(lanes, _TRIM, groups, num_entries)

    def release(self, lanes: Ids) -> None:
        """Forget `lanes`, each named once."""
        self._total = self._total - int(self._sums[lanes].sum(dtype=np.uint64)) & _MASK
        self._sums[lanes] = 0

    def clear(self) -> None:
        """Forget every lane."""
        self._sums[:] = 0
        self._total = 0

    def _add(self, lanes: Ids, kind: int, index: npt.ArrayLike, value: npt.ArrayLike) -> None:
        facts = self._facts(lanes, kind, index, value)
        np.add.at(self._sums, lanes, facts)
        self._count(facts)

    def _count(self, facts: _U64) -> None:
        self._total = self._total + int(facts.sum()) & _MASK

    def _facts(self, lanes: Ids | Places | int, kind: int, index: npt.ArrayLike, value: npt.ArrayLike) -> _U64:
        return _mix(_mix(self._keys[kind][lanes] ^ np.asarray(index, dtype=np.uint64)) ^ np.asarray(value, dtype=np.uint64))
