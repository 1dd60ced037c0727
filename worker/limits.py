"""What a worker can hold and run at once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Limits of a runner; the pages of each cache group come with the cache."""

    vocab_size: int
    max_model_len: int  # most tokens of a sequence
    max_lanes: int
    max_step_tokens: int
    num_partitions: int = 1
