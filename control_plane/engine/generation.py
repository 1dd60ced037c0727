"""One choice of a live request: its sequence, its text, and what is told about them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from control_plane.core.sequence import Sequence
from control_plane.core.step import TokenLogprob
from control_plane.engine.ports import (
    Ending,
    FinishReason,
    GenerationRequest,
    SequenceDelta,
    SequenceFinished,
    TextStream,
)

if TYPE_CHECKING:
    from control_plane.engine.request import LiveRequest


def push_token(spec: GenerationRequest, text: TextStream, token_id: int, num_generated: int) -> tuple[str, Ending | None]:
    """Take the token that makes `num_generated`: the text to be shown, and the ending it brings. A stop comes before the length."""
    shown = text.push(token_id)
    if token_id in spec.end_token_ids and num_generated > spec.min_tokens:
        return shown + text.finish(), Ending(FinishReason.STOP, token_id)
    matched = text.matched_stop
    if matched is not None:
        return shown, Ending(FinishReason.STOP, matched)
    if num_generated >= spec.max_tokens:
        return shown + text.finish(), Ending(FinishReason.LENGTH)
    return shown, None


@dataclass(slots=True, eq=False)
class Generation:
    """One choice of a live request."""

    request: "LiveRequest"
    choice: int
    text: TextStream
    sequence: Sequence
    num_resumed_tokens: int
    first_token_time: float | None = None
    last_token_time: float | None = None  # None: the gap before the next token is of no interest

    @property
    def num_new_tokens(self) -> int:
        """Tokens generated for this stream."""
        return self.sequence.num_generated_tokens - self.num_resumed_tokens

    def delta(self, token_id: int, text: str, logprob: TokenLogprob | None) -> SequenceDelta:
        """Describe the token that was appended last."""
        first_index = self.sequence.num_generated_tokens - 1
        logprobs = (logprob,) if logprob is not None else ()
        numerics_id = self.sequence.numerics_id or ""
        return SequenceDelta(self.request.spec.request_id, self.choice, first_index, (token_id,), text, logprobs, numerics_id)

    def finished(self, ending: Ending, now: float) -> SequenceFinished:
        """Describe the end."""
        sequence, arrival = self.sequence, self.request.spec.arrival_time
        return SequenceFinished(
            request_id=self.request.spec.request_id,
            choice=self.choice,
            reason=ending.reason,
            matched_stop=ending.matched_stop,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_generated_tokens=sequence.num_generated_tokens,
            num_cached_tokens=self.request.num_cached_tokens,
            num_readmissions=max(0, sequence.num_admissions - 1),
            queue_seconds=(now if sequence.first_scheduled_time is None else sequence.first_scheduled_time) - arrival,
            first_token_seconds=0.0 if self.first_token_time is None else self.first_token_time - arrival,
            total_seconds=now - arrival,
        )
