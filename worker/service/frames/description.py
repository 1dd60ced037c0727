"""What a worker says of itself."""

from collections.abc import Callable
from dataclasses import dataclass

from worker.step import CacheGroup


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What Welcome says about the worker, and what frames are held against."""

    incarnation: str
    model_fingerprint: str
    numerics_id: str
    vocab_size: int
    max_model_len: int
    max_lanes: int
    max_step_tokens: int
    max_steps_in_flight: int
    lease_seconds: float
    num_partitions: int
    cache_groups: tuple[CacheGroup, ...]
    weights_digest: Callable[[], str] = str  # empty until it is known


def max_table_length(group: CacheGroup, worker: WorkerDescription) -> int:
    """Most entries of a page table."""
    return -(-worker.max_model_len // group.page_tokens)
