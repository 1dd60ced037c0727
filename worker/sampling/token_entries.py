"""Token ids that belong to lanes, such as end tokens, biases and what penalties look at, as rows of a step see them."""

from dataclasses import dataclass

import numpy as np

from pypto_serving.wire.columns import Floats, Ids
from worker.step import Bools, Ints

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


class TokenCounts:
    """Counts of the lanes that ask for them, kept from token to token: a step costs what a lane has of distinct tokens, not its length."""

    def __init__(self) -> None:
        self._lanes: dict[int, _LaneCounts] = {}

    def put(self, lane: int, prompt: Ids, generated: Ids, room: int) -> None:
        """Count the tokens of `lane` anew; `room` more may follow."""
        self._lanes[lane] = _LaneCounts(prompt, generated, room)

    def drop(self, lane: int) -> None:
        """Stop counting the tokens of `lane`."""
        self._lanes.pop(lane, None)

    def clear(self) -> None:
        """Forget all lanes."""
        self._lanes.clear()

    def append(self, lanes: Ints, token_ids: Ints) -> None:
        """Count one generated token for those of `lanes` that are counted."""
        if self._lanes:
            for lane, token_id in zip(lanes.tolist(), token_ids.tolist(), strict=True):
                if lane in self._lanes:
                    self._lanes[lane].add(token_id)

    def gather(self, lanes: Ints) -> TokenEntries:
        """Each known token of `lanes` once, with how often it was generated; row i is lane `lanes[i]`."""
        kept = [(row, self._lanes[lane]) for row, lane in enumerate(lanes.tolist()) if lane in self._lanes]
        sizes = [len(counts.token_ids) for _, counts in kept]
        return TokenEntries(
            rows=np.repeat(np.array([row for row, _ in kept], dtype=np.int64), sizes),
            token_ids=np.concatenate([np.empty(0, dtype=np.int64), *(counts.token_ids for _, counts in kept)]),
            values=np.concatenate([np.empty(0, dtype=np.float32), *(counts.times for _, counts in kept)]),
        )


class _LaneCounts:
    """The distinct tokens of a lane in the order in which they came up."""

    def __init__(self, prompt: Ids, generated: Ids, room: int) -> None:
        known, places = np.unique(np.concatenate([prompt, generated]), return_inverse=True)
        times = np.bincount(places[len(prompt) :], minlength=len(known))
        self._places = {token_id: place for place, token_id in enumerate(known.tolist())}
        self._token_ids = np.concatenate([known.astype(np.int64), np.empty(room, dtype=np.int64)])
        self._times = np.concatenate([times.astype(np.float32), np.zeros(room, dtype=np.float32)])

    @property
    def token_ids(self) -> Ints:
        return self._token_ids[: len(self._places)]

    @property
    def times(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return self._times[: len(self._places)]

    def add(self, token_id: int) -> None:
        place = self._places.setdefault(token_id, len(self._places))
        self._token_ids[place] = token_id
        self._times[place] += 1
