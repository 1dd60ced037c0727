"""Options of the scheduler."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Limits hold per worker, beside the worker's own."""

    max_sequences: int = 256  # sequences that run at the same time on one worker
    max_step_tokens: int = 512
    max_steps_in_flight: int = 2
    max_model_len: int | None = None  # None: what the model and the KV memory of the largest worker allow
    prefix_caching: bool = True
    watermark: float = 0.01  # share of the pages that admission leaves to running sequences
    max_overtakes: int = 64  # a request that does not fit is overtaken so often, then pages are saved for it
    ageing_seconds: float = 10.0  # waiting this long improves the priority by one; infinite: priorities are strict
    max_losses: int = 3  # worker losses of a sequence that was alone in the lost step, without progress in between, then it ends
    grace_seconds: float = 30.0  # how long a sequence waits for a worker that may run it
    continue_on_numerics_change: bool = False  # instead of waiting for a worker with the numerics id of the earlier tokens

    @property
    def strict_priorities(self) -> bool:
        """Whether a lower number runs first however long others have waited."""
        return math.isinf(self.ageing_seconds)
