"""When a process that has died is started again, and when there is no use in it."""

import time
from collections.abc import Callable

#: Pauses before the first, second, ... start after lives that ended soon.
_PAUSES_SECONDS = (0.0, 0.2, 1.0, 5.0)
#: A life of at least this length, from where it served on, was no short one.
_STEADY_SECONDS = 2.0
#: So many starts in a row that came to nothing are enough.
_MAX_FAILED_STARTS = 5


class Lives:
    """Of one process, one after the other."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._has_served = False
        self._num_short_lives = 0
        self._num_failed_starts = 0  # in a row
        self._num_ended = 0
        self._serving_since: float | None = None  # in this life

    @property
    def is_serving(self) -> bool:
        """Whether it has served in this life."""
        return self._serving_since is not None

    @property
    def never_starts(self) -> bool:
        """Whether there is no use in trying again."""
        return self._num_ended > 0 and (not self._has_served or self._num_failed_starts >= _MAX_FAILED_STARTS)

    def serves(self) -> None:
        """It serves."""
        self._serving_since = self._clock()
        self._has_served, self._num_failed_starts = True, 0

    def end(self) -> float:
        """The life has ended; returns when the next one would begin, on the clock."""
        lasted = self._clock() - self._serving_since if self._serving_since is not None else 0.0
        self._num_short_lives = 0 if lasted >= _STEADY_SECONDS else self._num_short_lives + 1
        self._num_failed_starts += not self.is_serving
        self._num_ended += 1
        self._serving_since = None
        return self._clock() + _PAUSES_SECONDS[min(max(self._num_short_lives - 1, 0), len(_PAUSES_SECONDS) - 1)]
