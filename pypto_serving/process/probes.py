"""What probes over HTTP are told: whether a process has started, lives, and would answer a request."""

import asyncio
import time
from collections.abc import Callable, Mapping

_BEAT_SECONDS = 0.1

#: A loop that is this late is stuck, if it still is after another look: the whole process may have been stopped for a while.
_STUCK_SECONDS = 1.5
_SECOND_LOOK_SECONDS = 0.3


class Pulse:
    """Says on any thread whether an event loop turns."""

    def __init__(self) -> None:
        self._turned = time.monotonic()

    def seconds_since_turn(self) -> float:
        """How long ago the loop was last seen to turn; one that is well is never behind by more than some 0.2 s.

        The time comes from a timer on that loop, so it grows while the loop is blocked and after it has ended, and not while there is
        nothing to do.
        """
        return time.monotonic() - self._turned

    async def beat(self) -> None:
        """Note ten times a second that the loop turns, until cancelled."""
        while True:
            self._turned = time.monotonic()
            await asyncio.sleep(_BEAT_SECONDS)


class Probes:
    """Answers on threads of the metrics endpoint, which wait for no loop: each is a trouble in one line, empty without one."""

    def __init__(
        self, loops: Mapping[str, Callable[[], float]], starting: str = "starting", second_look_seconds: float = _SECOND_LOOK_SECONDS
    ) -> None:
        """`loops`: how many seconds ago each was seen to turn, by what it is called. `starting`: what goes on until `set_started`."""
        self._loops = loops
        self._starting = starting
        self._second_look_seconds = second_look_seconds
        self._readiness: Callable[[], str] = str  # no trouble
        self._liveness: Callable[[], str] = str

    def set_started(self, readiness: Callable[[], str], liveness: Callable[[], str] = str) -> None:
        """Note that the process serves.

        `readiness` says why a request would not succeed now, `liveness` why the process should be started again though its loops turn.
        Both are called on any thread.
        """
        self._readiness, self._liveness = readiness, liveness
        self._starting = ""

    def startup_trouble(self) -> str:
        """Why it has not started yet."""
        return self._starting

    def liveness_trouble(self) -> str:
        """Why the process is to be started again. What reads a model may hold a loop up: while it starts it lives."""
        if self._starting:
            return ""
        if self._late_loop():
            time.sleep(self._second_look_seconds)
        return self._late_loop() or self._liveness()

    def readiness_trouble(self) -> str:
        """Why a request would not succeed now."""
        return self.startup_trouble() or self.liveness_trouble() or self._readiness()

    def _late_loop(self) -> str:
        late = {name: seconds for name, look in self._loops.items() if (seconds := look()) > _STUCK_SECONDS}
        return next((f"{name} has not turned for {seconds:.1f} s" for name, seconds in late.items()), "")
