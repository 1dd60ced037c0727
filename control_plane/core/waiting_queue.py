"""Sequences that wait for a worker."""

import itertools
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter

from control_plane.core.replica import Replica
from control_plane.core.sequence import Sequence

#: Sequences that did not fit and are looked at again in one pass: the first ones of the order, and others in turn.
_FIRST, _IN_TURN = 4, 4

#: Deferred sequences of one worker that are looked at again when it takes a step; one more for each that starts.
_FIRST_DEFERRED = 16

#: Whom deferred sequences wait for: a worker, and whether it is for its prompts of many steps to become fewer.
Line = tuple[Replica | None, bool]

#: Of suspects that wait for a worker with no others.
SUSPECTS: Line = (None, False)

_order = attrgetter("order")


@dataclass(slots=True)
class _Bucket:
    """Sequences that may run under the same numerics id, and all fit on some worker with it, or on none."""

    stranded_since: float | None  # since when no worker in session can take them; None: some can
    entered: dict[Sequence, float] = field(default_factory=dict)  # in order of time
    num_tokens: int = 0  # known tokens of all

    def ends(self, grace_seconds: float) -> Iterator[tuple[float, Sequence]]:
        """When each sequence has waited long enough for a worker, soonest first."""
        if self.stranded_since is not None:
            for sequence, entered in self.entered.items():
                yield max(entered, self.stranded_since) + grace_seconds, sequence


class WaitingQueue:
    """Ordered by (priority improved by age, arrival). Sequences that no worker in session can take wait apart, in nobody's way.

    A sequence that is parked is no candidate until it is unparked. The cost of a pass does not depend on the length of the queue, since it
    looks at some candidates only, in order:

        candidates: not looked at yet --passed--> did not fit --recall--> candidates again, the first ones always, the others in turn
             |------------------------- deferred --> fits on a worker that cannot start it now --recall--> when it takes a step
             '--------------------------- admitted ---> a worker
    """

    def __init__(self) -> None:
        self.num_tokens = 0  # known tokens of all that wait
        self._buckets: dict[tuple[str | None, bool], _Bucket] = {}  # by numerics id, and whether they are too long for its workers
        self._live: dict[str | None, int] = {}  # longest sequence of the workers in session, by numerics id, and of all
        self._candidates: list[Sequence] = []  # in order
        self._passed: list[Sequence] = []  # in order; a worker in session can take them, but they did not fit
        self._deferred: dict[Line, list[Sequence]] = {}  # each in order
        self._deferrals: dict[Sequence, tuple[Line, int]] = {}  # line and weight; the one that was looked at first comes first
        self._deferred_tokens: Counter[Replica | None] = Counter()
        self._turn: tuple[float, float, int] = (0.0, 0.0, 0)  # order of the last one that was recalled in turn
        self._num_overtakes = 0  # admissions of sequences behind the first one that did not fit

    def __len__(self) -> int:
        return sum(len(bucket.entered) for bucket in self._buckets.values())

    @property
    def is_open(self) -> bool:
        """Whether somebody waits whom a worker in session can take."""
        return bool(self._candidates or self._passed or self._deferrals)

    @property
    def num_stranded(self) -> int:
        """Sequences that no worker in session can take."""
        return sum(len(bucket.entered) for bucket in self._buckets.values() if bucket.stranded_since is not None)

    @property
    def num_stranded_tokens(self) -> int:
        """Known tokens of sequences that no worker in session can take."""
        return sum(bucket.num_tokens for bucket in self._buckets.values() if bucket.stranded_since is not None)

    @property
    def numerics_ids(self) -> set[str | None]:
        """Numerics ids of the sequences that wait; None: of those that may run under any."""
        return {numerics_id for numerics_id, _ in self._buckets}

    def has_worker(self, numerics_id: str | None) -> bool:
        """Whether a worker in session has a numerics id."""
        return numerics_id in self._live

    def push(self, sequence: Sequence, now: float) -> None:
        """Let a sequence wait."""
        self._enter(sequence, now, None, now)
        sequence.passed_at = None
        self.num_tokens += len(sequence.token_ids)
        if not sequence.is_parked:
            self.unpark(sequence)

    def unpark(self, sequence: Sequence) -> None:
        """Make a sequence that waits a candidate."""
        if self._buckets[self._key(sequence)].stranded_since is None:
            insort(self._candidates, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Let a sequence wait no longer."""
        key = self._key(sequence)
        bucket = self._buckets[key]
        del bucket.entered[sequence]
        bucket.num_tokens -= len(sequence.token_ids)
        if not bucket.entered:
            del self._buckets[key]
        self.num_tokens -= len(sequence.token_ids)
        sequence.passed_at = None
        if sequence in self._deferrals:
            self._undefer(sequence)
            return
        for line in (self._candidates, self._passed):
            index = bisect_left(line, sequence.order, key=_order)
            if index < len(line) and line[index] is sequence:
                del line[index]

    # A pass

    def recall(self, lines: Iterable[Line] = ()) -> None:
        """Begin a pass: look again at the first that did not fit, and at a few more unless there are enough candidates without them.

        `lines`: those of workers that can start somebody now. Of all others a few are looked at in turn, as they may do better elsewhere.
        """
        for line in lines:
            self.recall_deferred(line, _FIRST_DEFERRED)
        for sequence in list(itertools.islice(self._deferrals, _IN_TURN)):
            self._undefer(sequence)
            insort(self._candidates, sequence, key=_order)
        enough = len(self._candidates) >= _FIRST + _IN_TURN
        self._recall(0, 1 if enough else _FIRST)
        if not enough and self._passed:
            index = bisect_right(self._passed, self._turn, key=_order)
            self._turn = self._recall(index if index < len(self._passed) else 0, _IN_TURN)[-1].order

    def candidate(self, index: int) -> Sequence | None:
        """The candidate at a place in the order."""
        return self._candidates[index] if index < len(self._candidates) else None

    def passed(self, sequence: Sequence) -> None:
        """Note that a candidate does not fit."""
        self._candidates.remove(sequence)
        insort(self._passed, sequence, key=_order)
        if sequence.passed_at is None:
            sequence.passed_at = self._num_overtakes

    def defer(self, sequence: Sequence, line: Line, weight: int) -> None:
        """Note that a candidate fits on a worker that cannot start it now, and adds `weight` to its load."""
        self._candidates.remove(sequence)
        insort(self._deferred.setdefault(line, []), sequence, key=_order)
        self._deferrals[sequence] = (line, weight)
        self._deferred_tokens[line[0]] += weight

    def deferred_tokens(self, replica: Replica) -> int:
        """Load of the sequences that wait for a worker."""
        return self._deferred_tokens[replica]

    def recall_deferred(self, line: Line, num: int) -> None:
        """Make the first sequences of a line candidates again."""
        for sequence in self._deferred.get(line, [])[:num]:
            self._undefer(sequence)
            insort(self._candidates, sequence, key=_order)

    def admitted(self, sequence: Sequence) -> None:
        """Remove a candidate that runs now. If it did not fit before, the next one that did not may fit too, and becomes a candidate."""
        did_not_fit = sequence.passed_at is not None
        self.remove(sequence)
        if self._passed and self._passed[0].order < sequence.order:
            self._num_overtakes += 1
        if did_not_fit:
            self._recall(bisect_right(self._passed, sequence.order, key=_order), 1)

    def recall_ahead(self, sequence: Sequence, passed: list[Sequence]) -> bool:
        """Make the first that did not fit a candidate again if it is ahead of a sequence, and not one of `passed`, which do not fit now."""
        first = self._passed[0] if self._passed else None
        if first is None or first.order > sequence.order or first in passed:
            return False
        self._recall(0, 1)
        return True

    def num_overtakes(self, sequence: Sequence) -> int:
        """How often a sequence was overtaken since it did not fit; more, if others between it and the first in the order ran."""
        return 0 if sequence.passed_at is None else self._num_overtakes - sequence.passed_at

    def _recall(self, first: int, num: int) -> list[Sequence]:
        recalled = self._passed[first : first + num]
        del self._passed[first : first + num]
        for sequence in recalled:
            insort(self._candidates, sequence, key=_order)
        return recalled

    def _undefer(self, sequence: Sequence) -> None:
        line, weight = self._deferrals.pop(sequence)
        waiting = self._deferred[line]
        del waiting[bisect_left(waiting, sequence.order, key=_order)]
        self._deferred_tokens[line[0]] -= weight
        if not waiting:
            del self._deferred[line]
            if line[0] not in {other for other, _ in self._deferred}:
                del self._deferred_tokens[line[0]]

    # The whole

    def clear(self) -> None:
        """Forget all."""
        self.num_tokens = 0
        self._buckets.clear()
        self._candidates.clear()
        self._forget_looks()

    def _forget_looks(self) -> None:
        self._passed.clear()
        self._deferred.clear()
        self._deferrals.clear()
        self._deferred_tokens.clear()

    def strand(self, live: Mapping[str, int], now: float) -> None:
        """Note which numerics ids have a worker now, and how long a sequence they run; others wait, and longer ones."""
        self._live = {None: max(live.values())} if live else {}
        self._live.update(live.items())
        old, self._buckets = self._buckets, {}
        for sequence, entered in sorted((item for bucket in old.values() for item in bucket.entered.items()), key=itemgetter(1)):
            key = self._key(sequence)
            self._enter(sequence, entered, old[key].stranded_since if key in old else None, now)
        runnable = [sequence for bucket in self._buckets.values() if bucket.stranded_since is None for sequence in bucket.entered]
        self._candidates = sorted((sequence for sequence in runnable if not sequence.is_parked), key=_order)
        self._forget_looks()

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

    def why_stranded(self, sequence: Sequence) -> str:
        """What a worker would have to be like to take a sequence that none can take."""
        tied = f" with numerics id {sequence.numerics_id!r}" if sequence.numerics_id else ""
        longest = self._live.get(sequence.numerics_id, 0)
        length = f" that holds {sequence.final_length} tokens (the largest holds {longest})" if longest else ""
        return f"no worker{tied}{length}"

    def _key(self, sequence: Sequence) -> tuple[str | None, bool]:
        return sequence.numerics_id, sequence.final_length > self._live.get(sequence.numerics_id, sequence.final_length)

    def _enter(self, sequence: Sequence, entered: float, stranded_since: float | None, now: float) -> None:
        key = self._key(sequence)
        if key not in self._buckets:
            is_stranded = key[0] not in self._live or key[1]
            self._buckets[key] = _Bucket((now if stranded_since is None else stranded_since) if is_stranded else None)
        self._buckets[key].entered[sequence] = entered
        self._buckets[key].num_tokens += len(sequence.token_ids)

    def tied_and_stranded(self) -> list[Sequence]:
        """Sequences tied to a numerics id that no worker in session has."""
        return [
            sequence
            for (numerics_id, _), bucket in self._buckets.items()
            if numerics_id is not None and bucket.stranded_since is not None
            for sequence in bucket.entered
        ]
