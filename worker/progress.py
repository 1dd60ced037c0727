"""How far the device thread has come, so that others can tell whether it hangs."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_WINDOW_NS = 60_000_000_000
_BAR_CELLS = 24


class StallWatch:
    """For how long a device that has work has made no progress. Any thread may read it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._count = -1
        self._since = 0.0

    def look(self, count: int, has_work: bool, now: float) -> None:
        """Note the count of a progress counter at a time, and whether it ought to rise."""
        if count != self._count or not has_work:
            self._count, self._since = count, now
        self.seconds = now - self._since


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the start, from a count on; without units nobody knows how long it is."""

    name: str
    begins_at: int
    num_units: int
    began_ns: int = 0  # by the clock of the counter


class ProgressCounter:
    """Counts units of work (a layer, a tensor loaded) on the device thread. Any thread may read it: each field is replaced whole.

    The slowest unit is that of the last one to two minutes, so that a process which once stood still (SIGSTOP, a machine that slept) is not
    thought to be that slow for ever; but never less than what the warm-up says of the longest step.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.count = 0
        self.phase = Phase("", 0, 0)  # of the start
        self._clock_ns = clock_ns
        self._last_ns = self._window_began_ns = clock_ns()
        self._slowest_ns = self._slowest_before_ns = self._slowest_of_warm_up_ns = 0  # in this window, in the one before, in the warm-up

    @property
    def slowest_unit_us(self) -> int:
        """Longest time that a unit took lately, in microseconds."""
        return max(self._slowest_ns, self._slowest_before_ns, self._slowest_of_warm_up_ns) // 1000

    def __call__(self) -> None:
        """Count a unit that took the time since the last one."""
        now = self._turn_window()
        self._slowest_ns = max(self._slowest_ns, now - self._last_ns)
        self._last_ns = now
        self.count += 1

    def expect_tensors(self, count: int) -> None:
        """So many tensors are about to be loaded."""
        self.enter("loading the model", count)

    def enter(self, phase: str, num_units: int) -> None:
        """Something that takes long begins: so many units of work, if that is known; 0: nobody knows."""
        self.phase = Phase(phase, self.count, num_units, self._clock_ns())

    def seconds_since(self, phase: Phase) -> float:
        """How long ago a phase began."""
        return (self._clock_ns() - phase.began_ns) / 1e9

    def begin(self) -> None:
        """Start timing the next unit now: the device was idle."""
        self._last_ns = self._turn_window()

    def forget_slowest(self) -> None:
        """Start anew with the slowest unit: what follows is of another kind."""
        self._slowest_ns = self._slowest_before_ns = 0
        self.begin()

    def end_warm_up(self, share: int = 1) -> None:
        """Let the slowest unit so far count for ever, as that of the longest step, of which the warm-up ran 1/`share`."""
        self._slowest_of_warm_up_ns = self._slowest_ns * share

    def _turn_window(self) -> int:
        """Begin another window if the present one is full; returns the time."""
        now = self._clock_ns()
        if now - self._window_began_ns >= _WINDOW_NS:
            is_recent = now - self._window_began_ns < 2 * _WINDOW_NS
            self._slowest_before_ns = self._slowest_ns if is_recent else 0
            self._slowest_ns, self._window_began_ns = 0, now
        return now


def phase_facts(phase: Phase, count: int, seconds: float) -> dict[str, object]:
    """How far a phase has come by a count, so many seconds after it began, for the log: nothing before it is known, or when all is done."""
    done = count - phase.begins_at
    if not 0 < done < phase.num_units:
        return {}
    return {"done": f"{done} of {phase.num_units}", "seconds_left": round(seconds * (phase.num_units - done) / done)}


def phase_bar(phase: Phase, count: int, seconds: float) -> str:
    """The same as one line for a terminal; empty before the first phase."""
    done = count - phase.begins_at
    if not phase.name:
        return ""
    if not 0 < done <= phase.num_units:
        return f"{phase.name} {seconds:.0f} s"
    num_cells = round(_BAR_CELLS * done / phase.num_units)
    left = seconds * (phase.num_units - done) / done
    return f"{phase.name} {'━' * num_cells}{'╌' * (_BAR_CELLS - num_cells)} {done} of {phase.num_units}, {left:.0f} s left"
