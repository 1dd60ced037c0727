"""The page tables of all lanes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pypto_serving.wire.columns import NO_PAGE, Ids
from worker.step import CacheGroup, Ints

_GONE = -1


class PageTables:
    """One row of page ids per lane and cache group. Ids are global here: page p of partition q is q * num_pages + p."""

    def __init__(self, num_lanes: int, groups: Sequence[CacheGroup], max_lengths: Ints) -> None:
        self._groups = groups
        self._tables = [np.full((num_lanes, length), _GONE, dtype=np.int32) for length in max_lengths]
        self._lengths = np.zeros((num_lanes, len(groups)), dtype=np.int64)
        self._partitions = np.zeros(num_lanes, dtype=np.int64)

    @property
    def num_groups(self) -> int:
        """How many tables a lane has."""
        return len(self._groups)

    def admit(self, lane: int, partition: int, tables: Sequence[Ids]) -> None:
        """Replace the tables of `lane`."""
        self._partitions[lane] = partition
        for group, pages in enumerate(tables):
            self._tables[group][lane, : self._lengths[lane, group]] = _GONE
            held = pages != NO_PAGE
            self._tables[group][lane, : len(pages)][held] = pages[held] + np.uint32(partition * self._groups[group].num_pages)
            self._lengths[lane, group] = len(pages)

    def trim(self, lanes: Ids, groups: Ids, num_entries: Ids) -> None:
        """Forget the leading entries of some tables."""
        for lane, group, count in zip(lanes.tolist(), groups.tolist(), num_entries.tolist(), strict=True):
            self._tables[group][lane, :count] = _GONE

    def grow(self, lanes: Ids, groups: Ids, pages: Ids) -> None:
        """Append a page to each table (`lanes[i]`, `groups[i]`), in order."""
        for group, spec in enumerate(self._groups):
            mine = groups == group
            order = np.argsort(lanes[mine], kind="stable")
            grown = lanes[mine][order]
            ranks = np.arange(len(grown)) - np.searchsorted(grown, grown)
            self._tables[group][grown, self._lengths[grown, group] + ranks] = pages[mine][order] + self._partitions[grown] * spec.num_pages
            np.add.at(self._lengths[:, group], grown, 1)

    def slots(self, group: int, lanes: Ints, positions: Ints) -> Ints:
        """Where the tokens at `positions` of `lanes` lie in the cache."""
        page_tokens = self._groups[group].page_tokens
        pages = self._tables[group][lanes, positions // page_tokens].astype(np.int64)
        return pages * page_tokens + positions % page_tokens

    def gather(self, group: int, lanes: Ints, max_tokens: int) -> npt.NDArray[np.int32]:
        """Tables of `lanes`, cut to what `max_tokens` tokens need: [lanes, pages], -1 where there is none."""
        num_pages = -(-max_tokens // self._groups[group].page_tokens)
        table: npt.NDArray[np.int32] = self._tables[group][lanes, :num_pages]
        return table
