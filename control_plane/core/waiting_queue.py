"""Sequences that wait for a worker."""

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from control_plane.core.sequence import Sequence


@dataclass(slots=True)
class _Bucket:
    """Sequences that may run under the same numerics id."""

    stranded_since: float | None  # no worker in session can take them; None: some can
    heap: list[tuple[tuple[float, int], Sequence]] = field(default_factory=list)  # entries of removed sequences are stale
    entered: dict[Sequence, float] = field(default_factory=dict)  # in order of time

    def head(self) -> Sequence | None:
        while self.heap and self.heap[0][1] not in self.entered:
            heapq.heappop(self.heap)
        return self.heap[0][1] if self.heap else None

    def compact(self) -> None:
        if len(self.heap) > 2 * len(self.entered) + 64:
            self.heap = [(sequence.order, sequence) for sequence in self.entered]
            heapq.heapify(self.heap)

    def ends(self, grace_seconds: float) -> Iterator[tuple[float, Sequence]]:
        """When each sequence has waited long enough for a worker, soonest first."""
        if self.stranded_since is not None:
            for sequence, entered in self.entered.items():
                yield max(entered, self.stranded_since) + grace_seconds, sequence


class WaitingQueue:
    """Ordered by (priority improved by age, arrival). Every operation costs at most the logarithm of its length, but for `strand`.

    Sequences that are tied to a numerics id wait apart, so that those without a worker are in nobody's way.
    """

    def __init__(self) -> None:
        self.num_tokens = 0  # known tokens of all that wait
        self._buckets: dict[str | None, _Bucket] = {}
        self._live: Collection[str | None] = ()

    def __len__(self) -> int:
        return sum(len(bucket.entered) for bucket in self._buckets.values())

    @property
    def num_stranded(self) -> int:
        """Sequences that no worker in session can take."""
        return sum(len(bucket.entered) for bucket in self._buckets.values() if bucket.stranded_since is not None)

    def push(self, sequence: Sequence, now: float) -> None:
        """Let a sequence wait."""
        bucket = self._buckets.get(sequence.numerics_id)
        if bucket is None:
            stranded_since = None if sequence.numerics_id in self._live else now
            bucket = self._buckets[sequence.numerics_id] = _Bucket(stranded_since)
        heapq.heappush(bucket.heap, (sequence.order, sequence))
        bucket.entered[sequence] = now
        self.num_tokens += len(sequence.token_ids)

    def candidates(self) -> Iterator[Sequence]:
        """Take sequences that a worker in session may run out of the order, the first first; those not removed are to be `put_back`."""
        buckets = [bucket for bucket in self._buckets.values() if bucket.stranded_since is None]
        while True:
            heads = [(head.order, bucket) for bucket in buckets if (head := bucket.head())]
            if not heads:
                return
            yield heapq.heappop(min(heads, key=lambda item: item[0])[1].heap)[1]

    def put_back(self, sequence: Sequence) -> None:
        """Return a candidate to its place."""
        heapq.heappush(self._buckets[sequence.numerics_id].heap, (sequence.order, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Stop waiting."""
        bucket = self._buckets[sequence.numerics_id]
        del bucket.entered[sequence]
        self.num_tokens -= len(sequence.token_ids)
        bucket.compact()

    def clear(self) -> None:
        """Forget all."""
        self.num_tokens = 0
        for bucket in self._buckets.values():
            bucket.entered.clear()
            bucket.heap.clear()

    def strand(self, live_numerics_ids: Collection[str], now: float) -> None:
        """Note which numerics ids have a worker now; without any, sequences that are tied to none wait too."""
        self._live = {*live_numerics_ids, None} if live_numerics_ids else set()
        for numerics_id, bucket in self._buckets.items():
            if numerics_id in self._live:
                bucket.stranded_since = None
            elif bucket.stranded_since is None:
                bucket.stranded_since = now

    def overdue(self, now: float, grace_seconds: float) -> list[Sequence]:
        """Sequences that have waited for a worker for the grace time."""
        found = []
        for bucket in self._buckets.values():
            for end, sequence in bucket.ends(grace_seconds):
                if end > now:
                    break
                found.append(sequence)
        return found

    def next_overdue(self, grace_seconds: float) -> float | None:
        """When the next sequence is overdue unless a worker comes."""
        firsts = [next(bucket.ends(grace_seconds), None) for bucket in self._buckets.values()]
        return min((first[0] for first in firsts if first), default=None)

    def tied_and_stranded(self) -> list[Sequence]:
        """Sequences tied to a numerics id that no worker in session has."""
        return [
            sequence
            for numerics_id, bucket in self._buckets.items()
            if numerics_id is not None and bucket.stranded_since is not None
            for sequence in bucket.entered
        ]
