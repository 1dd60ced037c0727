"""How many tokens a sequence may have."""

from collections.abc import Iterable

from control_plane.core.pages.kv_cache import max_sequence_length
from control_plane.core.step import WorkerDescription

#: Leading bits that a length which pages set keeps, so that a few pages more or less make no difference.
_KEPT_BITS = 5


def longest_sequence(description: WorkerDescription, max_model_len: int | None) -> int:
    """Most tokens of a sequence that a worker is given; what its pages hold is rounded down, by a sixteenth at most."""
    holds = max_sequence_length(description.cache_groups)
    holds -= holds % (1 << max(0, holds.bit_length() - _KEPT_BITS))
    return min(holds, description.max_model_len, max_model_len or holds)


class LengthLimit:
    """What the largest worker in session is given: it rises at once, and falls when no such worker has been there for the grace time."""

    def __init__(self, grace_seconds: float) -> None:
        self.tokens: int | None = None  # None until the first worker comes
        self._grace_seconds = grace_seconds
        self._largest = 0
        self._too_high_since: float | None = None

    @property
    def due(self) -> float | None:
        """When it falls."""
        return None if self._too_high_since is None else self._too_high_since + self._grace_seconds

    def workers_changed(self, lengths: Iterable[int], now: float) -> None:
        """Note what the workers in session are given."""
        self._largest = max(lengths, default=0)
        if self._largest >= (self.tokens or 0):
            self.tokens = self._largest or None
            self._too_high_since = None
        elif not self._largest:
            self._too_high_since = None  # nobody is there to judge by
        elif self._too_high_since is None:
            self._too_high_since = now

    def fall(self, now: float) -> None:
        """Give up waiting for a worker as large as the last one, if it is time."""
        if self.due is not None and now >= self.due:
            self.tokens, self._too_high_since = self._largest, None
