"""Tells a worker that hangs or fell silent from one that is slow."""

#: A worker hangs when it needs this many times its slowest unit of work.
_SLOWEST_UNITS = 10
#: A kernel is compiled within seconds, a whole model's within minutes.
_MAX_COMPILING_SECONDS = 600.0


class Watchdog:
    """Adds up the time without a sign of life and the time without progress.

    Time is told in ticks, so that a pause of our own event loop, during which nothing could be heard, is not held against the worker.
    """

    def __init__(self, lease_seconds: float, min_hang_seconds: float, max_hang_seconds: float) -> None:
        self.max_silence_seconds = lease_seconds / 2
        self._min_hang_seconds = min_hang_seconds
        self._max_hang_seconds = max_hang_seconds
        self._silence_seconds = 0.0
        self._stalled_seconds = 0.0
        self._compiling_seconds = 0.0  # of the time without progress
        self._is_compiling = False
        self._progress = 0
        self._slowest_unit_seconds = 0.0

    @property
    def silence_seconds(self) -> float:
        """Time since the last frame."""
        return self._silence_seconds

    @property
    def progress(self) -> int:
        """Units of work that the worker reported last."""
        return self._progress

    @property
    def is_stalled(self) -> bool:
        """Whether the worker has had work without progress for too long."""
        return self._stalled_seconds >= self._max_stalled_seconds

    @property
    def tick_seconds(self) -> float:
        """How often to call tick; both limits are several ticks long."""
        return min(self.max_silence_seconds, self._min_hang_seconds) / 10

    def heard(self) -> None:
        """A frame arrived."""
        self._silence_seconds = 0.0

    def answered(self) -> None:
        """A step was answered."""
        self._stalled_seconds = self._compiling_seconds = 0.0

    def progressed(self, progress: int, slowest_unit_us: int, is_compiling: bool = False) -> None:
        """The worker reported how far it is."""
        if progress != self._progress:
            self._stalled_seconds = self._compiling_seconds = 0.0
        self._progress, self._is_compiling = progress, is_compiling
        self._slowest_unit_seconds = slowest_unit_us / 1e6

    def tick(self, elapsed_seconds: float, has_work: bool) -> str | None:
        """Let time pass; returns why the worker is to be given up, if it is."""
        elapsed_seconds = min(elapsed_seconds, 2 * self.tick_seconds)
        self._silence_seconds += elapsed_seconds
        self._stall(elapsed_seconds, has_work)
        if self._silence_seconds >= self.max_silence_seconds:
            return f"silent for {self._silence_seconds:.1f} s"
        if self.is_stalled:
            return f"hangs: no progress for {self._stalled_seconds:.1f} s"
        return None

    def _stall(self, elapsed_seconds: float, has_work: bool) -> None:
        """Count time without progress, but not what is spent on a compilation that may still end."""
        if not has_work:
            self._stalled_seconds = self._compiling_seconds = 0.0
        elif self._is_compiling and self._compiling_seconds < _MAX_COMPILING_SECONDS:
            self._compiling_seconds += elapsed_seconds
        else:
            self._stalled_seconds += elapsed_seconds

    @property
    def _max_stalled_seconds(self) -> float:
        # A worker that stood still a moment ago (SIGSTOP, a machine that slept) tells that as its slowest unit: hence the upper limit.
        return max(self._min_hang_seconds, min(_SLOWEST_UNITS * self._slowest_unit_seconds, self._max_hang_seconds))
