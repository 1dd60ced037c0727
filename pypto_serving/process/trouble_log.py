"""Logs why somebody is out of reach, neither again and again nor once for ever."""

import logging
import re
import time
from collections.abc import Callable

#: So long the other end may be missing at the start: processes are started in any order, and models take a while to load.
_START_SECONDS = 60.0

#: A trouble that stays is said again after a minute, then after twice as long each time, up to an hour.
_FIRST_REMINDER_SECONDS, _MAX_REMINDER_SECONDS = 60.0, 3600.0


class TroubleLog:
    """One for each peer. A trouble counts as the one before if it differs in numbers only."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._began_at = clock()
        self._was_reached = False
        self._kind = ""
        self._told_at = 0.0
        self._pause = _FIRST_REMINDER_SECONDS

    def reached(self) -> None:
        """All is well: the next trouble is news, and no expected one."""
        self._was_reached = True
        self._kind = ""

    def told(self, trouble: str) -> None:
        """Take a trouble for logged: another line has said it."""
        self._kind, self._told_at, self._pause = _kind(trouble), self._clock(), _FIRST_REMINDER_SECONDS

    def note(self, trouble: str, is_missing: bool, **fields: object) -> None:
        """Log a trouble, if it is news or has lasted. `is_missing`: nobody is there, which is no warning at the start."""
        now = self._clock()
        if _kind(trouble) != self._kind:
            self.told(trouble)
        elif now - self._told_at < self._pause:
            return
        else:
            self._told_at, self._pause = now, min(2 * self._pause, _MAX_REMINDER_SECONDS)
        if is_missing and not self._was_reached and now - self._began_at < _START_SECONDS:
            self._log.info("not there yet: %s", trouble, extra=fields)
        else:
            self._log.warning("%s", trouble, extra=fields)


def _kind(trouble: str) -> str:
    return re.sub(r"\d+", "", trouble)
