"""When a client stops waiting for its call."""

import time

#: A client's own clock ends its call a little before ours would.
_TOLERANCE_SECONDS = 0.05


class Deadline:
    """The deadline of one call, made when the call begins: gRPC says how many seconds remain (None: no end) by the wall clock, which may
    jump, and this keeps them on the steady one.
    """

    def __init__(self, seconds: float | None) -> None:
        self._time = None if seconds is None else time.monotonic() + seconds

    @property
    def has_passed(self) -> bool:
        """Whether it has been reached; never without one."""
        return self._time is not None and time.monotonic() > self._time - _TOLERANCE_SECONDS
