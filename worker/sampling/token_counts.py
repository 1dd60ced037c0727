"""Which tokens penalised lanes know, and how often each of them was generated."""

import numpy as np

from pypto_serving.wire.columns import Ids
from worker.lanes.step_rules import Ints
from worker.lanes.token_entries import TokenEntries


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
