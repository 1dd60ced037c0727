"""A picture of the live sequences for operators. Prompts and output are never part of it."""

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


@dataclass(frozen=True, slots=True)
class EngineState:
    """Workers and, if asked for, sequences at one moment."""

    gauges: EngineGauges
    sequences: tuple[SequenceState, ...] = ()
