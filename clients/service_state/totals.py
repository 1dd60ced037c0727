"""What counters rose by, whatever restarts."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from clients.service_state.exposition import COUNTERS, Sample
from clients.service_state.state import Count, Percentiles, Rates

WINDOW_SECONDS = 60.0

#: Name and label of a sample.
Key = tuple[str, str]


class Totals:
    """Counters of all processes, and how they rose in the last minute.

    A series that falls began anew at zero, and so did one that is new in a process that was read before: the first error of its kind.
    What a process has counted before it is first read has not risen. One thread at a time.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, Sample]] = {}
        self._risen: dict[Key, float] = {}
        self._rose_at: dict[Key, float] = {}
        self._history: deque[tuple[float, dict[Key, float]]] = deque()  # oldest first, the newest is now

    def add(self, at: float, scrapes: Mapping[str, Iterable[Sample]]) -> None:
        """Take in what was read at `at` (time.monotonic()); of a process that could not be read the last counts stay."""
        for source, samples in scrapes.items():
            counters = {sample.series: sample for sample in samples if sample.name in COUNTERS}
            if source in self._last:
                for series, sample in counters.items():
                    self._note_rise(at, self._last[source].get(series), sample)
            self._last[source] = counters
        while self._history and self._history[0][0] < at - WINDOW_SECONDS:
            self._history.popleft()
        self._history.append((at, self._risen.copy()))

    def _note_rise(self, at: float, earlier: Sample | None, now: Sample) -> None:
        before = earlier.value if earlier else 0.0
        if now.value != before:
            key = (now.name, now.label)
            self._risen[key] = self._risen.get(key, 0.0) + now.value - (before if now.value > before else 0.0)
            self._rose_at[key] = at

    def recent(self, name: str, label: str = "") -> float:
        """How much a counter rose in the last minute."""
        return self._rise(name, label, self._history[0][1])

    def _rise(self, name: str, label: str, since: Mapping[Key, float]) -> float:
        return self._risen.get((name, label), 0.0) - since.get((name, label), 0.0)

    def rates(self) -> Rates | None:
        """Between the last two readings; None where those are more than a minute apart."""
        (began_at, since), (ended_at, _) = self._history[-2 if len(self._history) > 1 else -1], self._history[-1]
        span = ended_at - began_at
        if not span:
            return None
        requests = sum(self._rise(name, label, since) for name, label in self._risen if name == "requests_finished_total")
        prompt, generation = (self._rise(f"{kind}_tokens_total", "", since) for kind in ("prompt", "generation"))
        return Rates(span, requests / span, prompt / span, generation / span, self._rise("step_seconds_count", "", since) / span)

    def counts(self, name: str) -> list[Count]:
        """How often a counter rose, by its label."""
        return [self._count(name, label, total) for label, total in self._sums(name).items()]

    def _sums(self, name: str) -> dict[str, float]:
        """Of all processes, by label."""
        sums: defaultdict[str, float] = defaultdict(float)
        for samples in self._last.values():
            for sample in samples.values():
                if sample.name == name:
                    sums[sample.label] += sample.value
        return sums

    def _count(self, name: str, label: str, total: float) -> Count:
        rose_at, now = self._rose_at.get((name, label)), self._history[-1][0]
        return Count(label, int(total), int(self.recent(name, label)), None if rose_at is None else now - rose_at)

    def percentiles(self, name: str) -> Percentiles | None:
        """Of the last minute of a histogram; None where it holds nothing."""
        bucket = f"{name}_bucket"
        buckets = sorted((float(label), self.recent(bucket, label)) for label in self._sums(bucket))
        if not buckets or not buckets[-1][1]:
            return None
        return Percentiles(int(buckets[-1][1]), *(quantile(buckets, share) for share in (0.5, 0.9, 0.99)))


def quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """Interpolated within the bucket it falls into, as Prometheus does; the last bound where it falls beyond.

    `buckets`: upper bounds in order, the last one infinite, and how many values lie below each.
    """
    rank = share * buckets[-1][1]
    low, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            return low if bound == float("inf") else low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    raise AssertionError("the last bucket holds all values")
