"""A picture of the live sequences for operators. Prompts and output are part of it only when they are asked for."""

from dataclasses import dataclass

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
    is_held: bool = False  # its reader is slow
    age_seconds: float = 0.0  # since its request arrived
    queue_seconds: float = 0.0  # until it ran for the first time, or until now
    token_ids: tuple[int, ...] = ()  # prompt and output


@dataclass(frozen=True, slots=True)
class EngineState:
    """Workers and, if asked for, sequences at one moment."""

    gauges: EngineGauges
    sequences: tuple[SequenceState, ...] = ()
