"""Lists of token ids that belong to lanes, such as end tokens and biases."""

from dataclasses import dataclass

import numpy as np

from pypto_serving.wire.columns import Floats, Ids
from worker.lanes.step_rules import Bools, Ints

_LARGEST = np.finfo(np.float32).max


@dataclass(frozen=True, slots=True)
class TokenEntries:
    """Entries of a sparse matrix of rows and token ids."""

    rows: Ints
    token_ids: Ints
    values: Floats

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, wanted: Bools) -> "TokenEntries":
        """The entries marked in `wanted`."""
        return TokenEntries(self.rows[wanted], self.token_ids[wanted], self.values[wanted])


class LaneTokenLists:
    """One list of token ids with values per lane, laid out flat so that a step reads those of all its lanes at once."""

    def __init__(self, num_lanes: int) -> None:
        self._lists: dict[int, tuple[Ids, Floats]] = {}
        self._num_lanes = num_lanes
        self._layout: TokenEntries | None = None

    def put(self, lane: int, token_ids: Ids, values: Floats | None = None) -> None:
        """Replace the list of `lane`; values default to zero, those of a token named twice add up, but not to infinity."""
        self._layout = None
        self._lists.pop(lane, None)
        if len(token_ids):
            unique_ids, places = np.unique(token_ids, return_inverse=True)
            sums = np.bincount(places, weights=values, minlength=len(unique_ids)) if values is not None else np.zeros(len(unique_ids))
            self._lists[lane] = (unique_ids, sums.clip(-_LARGEST, _LARGEST).astype(np.float32))

    def clear(self) -> None:
        """Forget all lists."""
        self._layout = None
        self._lists.clear()

    def gather(self, lanes: Ints) -> TokenEntries:
        """The entries of `lanes`; row i is lane `lanes[i]`."""
        if self._layout is None:
            self._layout = self._lay_out()
        row_of_lane = np.full(self._num_lanes, -1)
        row_of_lane[lanes] = np.arange(len(lanes))
        rows = row_of_lane[self._layout.rows]
        return TokenEntries(rows, self._layout.token_ids, self._layout.values).only(rows >= 0)

    def _lay_out(self) -> TokenEntries:
        """All entries; rows are lanes."""
        sizes = np.fromiter((len(ids) for ids, _ in self._lists.values()), dtype=np.int64)
        lanes = np.repeat(np.fromiter(self._lists, dtype=np.int64), sizes)
        ids = np.concatenate([np.empty(0, dtype=np.int64), *(ids for ids, _ in self._lists.values())])
        values = np.concatenate([np.empty(0, dtype=np.float32), *(values for _, values in self._lists.values())])
        return TokenEntries(lanes, ids.astype(np.int64), values)
