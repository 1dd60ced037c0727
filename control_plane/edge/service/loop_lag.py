"""How late the clients' event loop runs, and what follows from it."""

import asyncio
from typing import Protocol

from control_plane.edge.service.errors import ResourceExhausted

#: From here on streams pause between two writes for as long as the loop is late, but not longer than the other: what comes meanwhile is
#: joined, so that fewer messages are left to write, and the loop has time for new calls.
_PACED_SECONDS, _MAX_PAUSE_SECONDS = 0.02, 0.5

#: From here on new calls are refused.
_REFUSED_SECONDS = 1.0


class LagMetrics(Protocol):
    """What is counted."""

    def observe_loop_lag(self, seconds: float) -> None:
        """A timer ran so late."""

    def observe_paced_write(self) -> None:
        """A stream paused."""

    def observe_late_refusal(self) -> None:
        """A call was refused."""


class LoopLag:
    """Belongs to the clients' event loop."""

    def __init__(self, metrics: LagMetrics) -> None:
        self._metrics = metrics
        self.seconds = 0.0  # lately

    def observe(self, seconds: float) -> None:
        """Take how late a timer ran; counts in full at once, and is half forgotten with the next look."""
        self._metrics.observe_loop_lag(seconds)
        self.seconds = max(seconds, self.seconds / 2)

    def require_room(self) -> None:
        """Raise ResourceExhausted when the loop runs so late that a new call would wait for each of its steps."""
        if self.seconds > _REFUSED_SECONDS:
            self._metrics.observe_late_refusal()
            retry = 2 * self.seconds
            raise ResourceExhausted(
                f"the server is overloaded: it runs {self.seconds:.1f} s late, limit {_REFUSED_SECONDS:g} s; retry in {retry:.1f} s", retry
            )

    async def pace(self) -> None:
        """Wait between two writes of a stream while the loop is late."""
        if self.seconds > _PACED_SECONDS:
            self._metrics.observe_paced_write()
            await asyncio.sleep(min(self.seconds, _MAX_PAUSE_SECONDS))
