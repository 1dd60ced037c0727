"""How many tokens a request may have: known once the first worker is in session."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from control_plane.edge.service.errors import SHUTTING_DOWN, ResourceExhausted, Unavailable


@dataclass(frozen=True, slots=True)
class Absence:
    """Who is missing, so that the limit is not known."""

    reason: str
    grace_seconds: float  # for which requests wait
    since: float = 0.0  # by the limit's clock


class ContextLimit:
    """Holds requests back until the limit is known, so that all are judged by the same number. Used on the clients' event loop."""

    def __init__(self, grace_seconds: float, max_waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`grace_seconds`: for which a worker is waited for."""
        self.no_worker = Absence(f"no worker came into session within {grace_seconds:g} s; try again when one is there", grace_seconds)
        self._max_waiting = max_waiting
        self._clock = clock
        self._num_waiting = 0
        self._decided = asyncio.Event()
        self._is_closed = False
        self.absence: Callable[[], Absence] = lambda: self.no_worker  # why the limit is not known
        self.tokens = 0  # 0: not known yet

    @property
    def num_waiting(self) -> int:
        """Requests held back."""
        return self._num_waiting

    def set(self, tokens: int) -> None:
        """The limit is known; it changes when workers of other sizes come and go."""
        self.tokens = tokens
        self._decided.set()

    def close(self) -> None:
        """The server drains: whoever waits is refused."""
        self._is_closed = True
        self._decided.set()

    async def get(self) -> int:
        """The limit; raises Unavailable when who knows it does not come within the grace time, and ResourceExhausted when too many wait."""
        if not self._decided.is_set():
            await self._wait()
        if self._is_closed and not self.tokens:
            raise Unavailable(SHUTTING_DOWN)
        return self.tokens

    async def _wait(self) -> None:
        if self._num_waiting >= self._max_waiting:
            waiting = f"{self._num_waiting} requests wait for a worker, limit {self._max_waiting}"
            raise ResourceExhausted(f"{waiting}; retry in 1.0 s", retry_after_seconds=1.0)
        self._num_waiting += 1
        came = self._clock()
        try:
            while not self._decided.is_set():
                absence = self.absence()
                left = max(came, absence.since) + absence.grace_seconds - self._clock()
                if left <= 0:
                    raise Unavailable(absence.reason)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._decided.wait(), left)
        finally:
            self._num_waiting -= 1
