"""How many wrong answers a worker may give before it is given up."""

#: What a wrong answer costs; a good one pays a hundredth of a misfit back.
_MISFIT, _FAILURE, _REPAID = 1.0, 2.0, 0.01
#: A step that fails counts as a loss of its sequences: two of them may see no third, which would end them.
_BUDGET = 3.0


class FaultBudgetSpent(Exception):
    """A worker has given too many wrong answers; the message says what was wrong the last time."""


class FaultBudget:
    """Sums up the faults of one incarnation of a worker, over all its sessions.

    Without a limit a worker that fails every step, at once, would always have room for the next sequence.
    """

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self._spent = 0.0
        self.num_breaches = 0  # since all was repaid

    def confirm(self) -> None:
        """A result was good."""
        self._spent = max(0.0, self._spent - _REPAID)
        if not self._spent:
            self.num_breaches = 0

    def misfit(self, reason: str) -> None:
        """A result is not what it has to be; raises FaultBudgetSpent when that is one too many."""
        self._spend(_MISFIT, f"results do not fit: {reason}")

    def failure(self, reason: str) -> None:
        """A step failed; raises FaultBudgetSpent when that is one too many."""
        self._spend(_FAILURE, f"steps fail: {reason}")

    def breach(self) -> None:
        """The worker is given up: what it says is no protocol, or wrong too often."""
        self._spent = _BUDGET + _FAILURE
        self.num_breaches += 1

    def _spend(self, weight: float, reason: str) -> None:
        self._spent += weight
        if self._spent > _BUDGET:
            self.breach()
            raise FaultBudgetSpent(f"given up, as {reason}")
