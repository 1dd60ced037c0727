"""How two monotonic clocks stand to each other, from the frames that their processes exchange."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pypto_serving.profile.v1 import profile_pb2

_MAX_SAMPLES = 64

#: Clocks of machines go apart by so much of the time that passes; good ones by a fifth of it.
_MAX_DRIFT = 100e-6


@dataclass(frozen=True, slots=True)
class Offset:
    """What is to be added to a reading of the other clock, and how far that may be wrong."""

    nanoseconds: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class _Sample:
    offset_ns: int
    error_ns: int  # half of the time that both ways took
    taken_at_ns: int

    def error_at(self, now_ns: int) -> int:
        return self.error_ns + round((now_ns - self.taken_at_ns) * _MAX_DRIFT)


class PeerClock:
    """Compares our clock with that of one peer, as NTP does.

        ours    sent -----.                            .---> now
                           \\ a way of unknown length  /  another one
        theirs              '--> echoed_at ... sent --'

    Were both ways as long, the offset would be the mean of the two differences; it is wrong by half of what they take at most. So the
    samples count in which they took least, newer ones first, as clocks go apart.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._heard_ns = 0  # the peer's clock, as it said last
        self._heard_at_ns = 0  # ours, when it said so
        self._samples: deque[_Sample] = deque(maxlen=_MAX_SAMPLES)

    def reading(self) -> profile_pb2.Clock:
        """What to send now."""
        return profile_pb2.Clock(sent_ns=self._clock(), echoed_ns=self._heard_ns, echoed_at_ns=self._heard_at_ns)

    def heard(self, clock: profile_pb2.Clock) -> None:
        """Take in what the peer sent; what cannot be true is ignored."""
        now = self._clock()
        self._heard_ns, self._heard_at_ns = clock.sent_ns, now
        taken_ns = (now - clock.echoed_ns) - (clock.sent_ns - clock.echoed_at_ns)
        if not clock.echoed_ns or not clock.echoed_ns <= now or not clock.echoed_at_ns <= clock.sent_ns or taken_ns < 0:
            return
        offset = ((clock.echoed_ns - clock.echoed_at_ns) + (now - clock.sent_ns)) // 2
        self._samples.append(_Sample(offset, -(-taken_ns // 2), now))

    def offset(self) -> Offset | None:
        """The best estimate; None before the first answer. One that could be nothing is nothing: processes of a machine share a clock."""
        if not self._samples:
            return None
        now = self._clock()
        best = min(self._samples, key=lambda sample: sample.error_at(now))
        error = best.error_at(now)
        return Offset(0 if abs(best.offset_ns) <= error else best.offset_ns, error)
