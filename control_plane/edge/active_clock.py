"""Time as somebody counts it who waits for others."""

import asyncio
import time
from collections.abc import Callable

_BEAT_SECONDS = 0.25
#: More than that between two beats was no busy loop: the process, or its machine, stood still.
_MAX_GAP_SECONDS = 1.0


class ActiveClock:
    """Steady time, of which little passes while this process stands still: whoever waits gives up only when it could have got something.

    Belongs to the event loop that `run` runs on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._beat_at = clock()

    def __call__(self) -> float:
        return self._seconds + min(self._clock() - self._beat_at, _MAX_GAP_SECONDS)

    def beat(self) -> None:
        """The process moves."""
        self._seconds, self._beat_at = self(), self._clock()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(_BEAT_SECONDS)
