"""A snapshot of the live sequences for operators. Prompts and output are part of it only when they are asked for."""

from dataclasses import dataclass

from control_plane.core.sequence import Sequence
from control_plane.engine.metrics_port import EngineGauges


@dataclass(frozen=True, slots=True)
class SequenceState:
    """One live sequence."""

    request_id: str
    choice: int
    worker: str  # address; empty while it waits
    num_prompt_tokens: int
    num_generated_tokens: int
    num_computed_tokens: int
    num_pages: int
    is_held: bool  # its reader is slow
    age_seconds: float  # since its request arrived
    queue_seconds: float  # until it ran for the first time, or until now
    token_ids: tuple[int, ...]  # prompt and output, if they were asked for

    @classmethod
    def of(cls, sequence: Sequence, is_held: bool, now: float, with_token_ids: bool) -> "SequenceState":
        """Describe a live sequence."""
        replica, first_time = sequence.replica, sequence.first_scheduled_time
        return cls(
            request_id=sequence.request_id,
            choice=sequence.choice,
            worker=replica.description.address if replica else "",
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_generated_tokens=sequence.num_generated_tokens,
            num_computed_tokens=sequence.num_computed_tokens,
            num_pages=sequence.pages.num_pages if replica else 0,
            is_held=is_held,
            age_seconds=now - sequence.arrival_time,
            queue_seconds=(now if first_time is None else first_time) - sequence.arrival_time,
            token_ids=tuple(sequence.token_ids) if with_token_ids else (),
        )


@dataclass(frozen=True, slots=True)
class EngineState:
    """Workers and, if asked for, sequences at one moment."""

    gauges: EngineGauges
    sequences: tuple[SequenceState, ...]
