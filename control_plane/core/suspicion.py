"""What is held against a sequence that was in lost steps."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from control_plane.core.replica import Replica


class Suspicion:
    """From a loss until the sequence has more tokens acknowledged than ever before, and all those that were in the lost steps.

    A step has suspects only, or none. Those that were lost once, in the same steps, run with at most half of their number; whoever was lost
    again runs alone, so that in the end each poison is alone with its losses, and nobody else ends for them:

        lost with others --half runs--> progress: no suspect any more
                              '--lost again--> runs alone --lost alone, as often as allowed--> ends
    """

    def __init__(self, cohort: object, max_together: int) -> None:
        self.num_losses = 0
        self.num_losses_alone = 0
        self.num_tokens = 0  # computed, or in the lost steps: as many have to be acknowledged
        self._cohort = cohort  # one for all that were lost in the same steps
        self._max_together = max_together

    def is_cleared(self, num_acked_tokens: int, max_acked_tokens: int) -> bool:
        """Whether the sequence made progress; `max_acked_tokens` had been acknowledged before, or came from the cache."""
        return num_acked_tokens > max_acked_tokens and num_acked_tokens >= self.num_tokens

    def may_join(self, others: "list[Suspicion]") -> bool:
        """Whether the sequence may run beside those that run in the steps of suspects already."""
        if not others:
            return True
        joins = self.num_losses == 1 and others[0].num_losses == 1 and others[0]._cohort is self._cohort
        return joins and len(others) < self._max_together


def blame(replica: "Replica") -> None:
    """Hold the loss of the steps in flight against the sequences in them."""
    sequences = replica.sequences_in_flight
    cohort, max_together = object(), max(1, len(sequences) // 2)
    for sequence in sequences:
        if sequence.suspicion is None:
            sequence.suspicion = Suspicion(cohort, max_together)
        sequence.suspicion.num_losses += 1
        sequence.suspicion.num_tokens = max(sequence.suspicion.num_tokens, sequence.num_computed_tokens)
        sequence.suspicion.num_losses_alone += replica.num_in_flight == 1
