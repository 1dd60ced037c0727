"""What the result of a step means for sequences."""

from dataclasses import dataclass, field

from control_plane.core.sequence import Sequence
from control_plane.core.step import TokenLogprob


@dataclass(frozen=True, slots=True)
class FailedSequence:
    """A sequence that can not go on."""

    sequence: Sequence
    message: str
    nothing_to_draw: bool = False  # its request's own fields exclude every token; the message says which, and why


@dataclass(slots=True)
class StepOutcome:
    """What a step result brought, in the order in which it is to be told."""

    prompt_logprobs: list[Sequence] = field(default_factory=list)  # complete now
    tokens: list[tuple[Sequence, int, TokenLogprob | None]] = field(default_factory=list)
    computed: list[Sequence] = field(default_factory=list)  # sequences that were to compute only, and have
    failed: list[FailedSequence] = field(default_factory=list)
    sent_time: float = 0.0
    num_tokens: int = 0  # that ran
    continued: bool = False  # some sequence had run on the worker before: if its device was idle, then not for lack of work
