"""How far a worker is believed that answers, and answers wrong."""

#: What a wrong answer costs; a good one makes good for a hundredth of a misfit.
_MISFIT, _FAILURE, _AMENDS = 1.0, 2.0, 0.01
#: A step that fails counts as a loss of its sequences: two of them may see no third, which would end them.
_MAX_DOUBTS = 3.0


class WorkerDistrusted(Exception):
    """A worker has given too many wrong answers; the message says what was wrong the last time."""


class Trust:
    """Sums up doubts in one incarnation of a worker, over all its sessions.

    Without a limit a worker that fails every step, at once, would always have room for the next sequence.
    """

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self._doubts = 0.0
        self.num_breaches = 0  # since there were no doubts

    def confirm(self) -> None:
        """A result was good."""
        self._doubts = max(0.0, self._doubts - _AMENDS)
        if not self._doubts:
            self.num_breaches = 0

    def misfit(self, reason: str) -> None:
        """A result is not what it has to be; raises WorkerDistrusted when that is one too many."""
        self._doubt(_MISFIT, f"results do not fit: {reason}")

    def failure(self, reason: str) -> None:
        """A step failed; raises WorkerDistrusted when that is one too many."""
        self._doubt(_FAILURE, f"steps fail: {reason}")

    def breach(self) -> None:
        """The worker is given up: what it says is no protocol, or wrong too often."""
        self._doubts = _MAX_DOUBTS + _FAILURE
        self.num_breaches += 1

    def _doubt(self, weight: float, reason: str) -> None:
        self._doubts += weight
        if self._doubts > _MAX_DOUBTS:
            self.breach()
            raise WorkerDistrusted(f"given up, as {reason}")
