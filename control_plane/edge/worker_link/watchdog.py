"""When a worker is given up: it hangs, fell silent, or answers wrong too often."""

#: A worker hangs when it needs this many times its slowest unit of work.
_SLOWEST_UNITS = 10
#: A kernel is compiled within seconds, a whole model's within minutes.
_MAX_COMPILING_SECONDS = 600.0

#: What a wrong answer costs; a good one pays a hundredth of it back.
_WRONG_RESULT, _FAILED_STEP, _REPAID = 1.0, 2.0, 0.01
#: A step that fails counts as a loss of its sequences: two of them may see no third, which would end them.
_BUDGET = 3.0


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
        # A worker that stood still a moment ago (SIGSTOP, a machine that slept) reports that as its slowest unit: hence the upper limit.
        slow_seconds = min(_SLOWEST_UNITS * self._slowest_unit_seconds, self._max_hang_seconds)
        return self._stalled_seconds >= max(self._min_hang_seconds, slow_seconds)

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


class FaultBudgetSpent(Exception):
    """A worker has given too many wrong answers; the message says what was wrong the last time."""


class FaultBudget:
    """Sums up the faults of one incarnation of a worker, over all its sessions.

    Without a limit a worker that fails every step, at once, would always have room for the next sequence.
    """

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self._spent = 0.0
        self.num_exhaustions = 0  # since all was repaid

    def count_good_result(self) -> None:
        """Pay a little back."""
        self._spent = max(0.0, self._spent - _REPAID)
        if not self._spent:
            self.num_exhaustions = 0

    def count_wrong_result(self, reason: str) -> None:
        """Charge a result that is not what it has to be; raises FaultBudgetSpent when that is one too many."""
        self._spend(_WRONG_RESULT, f"results do not fit: {reason}")

    def count_failed_step(self, reason: str) -> None:
        """Charge a step that failed; raises FaultBudgetSpent when that is one too many."""
        self._spend(_FAILED_STEP, f"steps fail: {reason}")

    def exhaust(self) -> None:
        """Give the worker up: what it says is no protocol, or wrong too often."""
        self._spent = _BUDGET + _FAILED_STEP
        self.num_exhaustions += 1

    def _spend(self, weight: float, reason: str) -> None:
        self._spent += weight
        if self._spent > _BUDGET:
            self.exhaust()
            raise FaultBudgetSpent(f"given up, as {reason}")
