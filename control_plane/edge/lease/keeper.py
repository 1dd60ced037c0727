"""Takes a lease, and knows for how long it is ours."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_log = logging.getLogger(__name__)

#: Share of the lease, from the start of a renewal, after which its holder gives it up: the rest is its time to stop. Others take it no
#: sooner than a whole lease after they have seen the renewal, which is later.
_HELD_SHARE = 0.8


class LeaseUnreachable(Exception):
    """The lease can be neither read nor written now; the message says why."""


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What stands in the lease."""

    holder: str  # empty: nobody
    seconds: float  # without a renewal after which others may take it
    version: str  # another one after every write


class LeaseStore(Protocol):
    """Where the lease is kept. Both methods may block, and raise LeaseUnreachable."""

    def read(self) -> LeaseRecord | None:
        """What stands there; None: nothing yet."""

    def write(self, holder: str, seconds: float, seen: LeaseRecord | None) -> LeaseRecord | None:
        """Put another record in place of the one `seen`; None, and nothing written, if another one stands there by now."""


class LeaseKeeper:
    """Waits for the lease, then keeps it, or has lost it for good. `turn` belongs to one thread; the rest may be asked on any.

    Clocks are not compared: whoever wants the lease looks how long nobody has written it, by its own clock.
    """

    def __init__(self, store: LeaseStore, name: str, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`name`: of this process alone, shown to others; another one at every start."""
        self._store = store
        self._name = name
        self._seconds = seconds
        self._clock = clock
        self._held_until: float | None = None  # None: was never held
        self._seen: LeaseRecord | None = None
        self._seen_at = 0.0  # when it was seen for the first time
        self._trouble = ""

    @property
    def is_held(self) -> bool:
        """Whether the lease is ours at this moment."""
        return self._held_until is not None and self._clock() < self._held_until

    @property
    def is_lost(self) -> bool:
        """Whether it was ours, and is not any more."""
        return self._held_until is not None and not self.is_held

    @property
    def holder(self) -> str:
        """Who holds it, as far as we know; empty: nobody."""
        return self._seen.holder if self._seen else ""

    def turn(self) -> None:
        """Take the lease if it is free, or renew it. To be called several times while a lease lasts."""
        if self.is_lost:
            return
        started = self._clock()
        try:
            self._note(self._store.read())
            if self.holder == self._name:  # also if we have not heard that a write succeeded
                self._write(started)
            elif self._held_until is not None:
                self._held_until = self._clock()  # somebody else has it
            elif self._is_free():
                self._write(started)
        except LeaseUnreachable as error:
            self._report(str(error))
        else:
            self._trouble = ""

    def release(self) -> None:
        """Give the lease back, so that the next one need not wait."""
        if not self.is_held:
            return
        self._held_until = self._clock()
        try:
            self._store.write("", self._seconds, self._seen)
        except LeaseUnreachable as error:
            self._report(str(error))

    def _note(self, record: LeaseRecord | None) -> None:
        if record != self._seen or record is None:
            self._seen, self._seen_at = record, self._clock()

    def _is_free(self) -> bool:
        return self._seen is None or not self._seen.holder or self._clock() - self._seen_at >= self._seen.seconds

    def _write(self, started: float) -> None:
        if written := self._store.write(self._name, self._seconds, self._seen):
            self._note(written)
            self._held_until = started + _HELD_SHARE * self._seconds

    def _report(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.warning("the lease is out of reach", extra={"reason": trouble})
        self._trouble = trouble
