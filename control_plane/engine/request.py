"""A live request and its choices: their sequences, their text, and what is published about them."""

from dataclasses import dataclass, field, replace

from control_plane.core.sequence import Sequence
from control_plane.core.sibling_group import SiblingGroup
from control_plane.core.step import TokenLogprob
from control_plane.engine.ports import (
    ChoiceSpec,
    Ending,
    FinishReason,
    GenerationRequest,
    SequenceDelta,
    SequenceFinished,
    TextStream,
)


def push_token(spec: GenerationRequest, text: TextStream, token_id: int, num_generated: int) -> tuple[str, Ending | None]:
    """Push the token that makes `num_generated`: the text to be shown, and the ending it brings. A stop comes before the length."""
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
class LiveRequest:
    """A request with choices that have not ended."""

    spec: GenerationRequest
    open: list["LiveChoice"] = field(default_factory=list)  # choices that go on, by rising index
    ended: list[tuple["LiveChoice", Ending]] = field(default_factory=list)  # choices whose ending a resume contains
    reason: FinishReason = FinishReason.STOP  # of the whole: LENGTH once a choice ended so
    has_tokens: bool = False  # of any choice
    held: bool = False  # its reader is slow: nothing runs for it until it is let go
    leader: Sequence | None = None  # of the lowest choice that goes on: it computes the prompt for all, and reports its log probabilities

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache; what the choices share among themselves does not count."""
        return self.leader.num_cached_tokens if self.leader else 0


@dataclass(slots=True, eq=False)
class LiveChoice:
    """One choice of a live request."""

    request: LiveRequest
    index: int
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
        return SequenceDelta(self.request.spec.request_id, self.index, first_index, (token_id,), text, logprobs, numerics_id)

    def finished(self, ending: Ending, now: float) -> SequenceFinished:
        """Describe the end."""
        sequence, arrival = self.sequence, self.request.spec.arrival_time
        return SequenceFinished(
            request_id=self.request.spec.request_id,
            choice=self.index,
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


def begin(spec: GenerationRequest) -> LiveRequest:
    """Make the sequences of a request whose resumed tokens have been replayed."""
    assert spec.choices, "a request has choices"
    live = LiveRequest(spec)
    num_open = sum(choice.resumed_ending is None for choice in spec.choices)
    group = SiblingGroup() if num_open > 1 else None
    for choice in spec.choices:
        ending = choice.resumed_ending
        goes_on = ending is None
        sequence = _sequence(spec, choice, group if goes_on else None, leads=goes_on and live.leader is None)
        begun = LiveChoice(live, choice.index, choice.text, sequence, len(choice.resumed_token_ids))
        if ending:
            live.ended.append((begun, ending))
            continue
        live.open.append(begun)
        live.leader = live.leader or sequence
    return live


def _sequence(spec: GenerationRequest, choice: ChoiceSpec, group: SiblingGroup | None, leads: bool) -> Sequence:
    num_prompt_tokens, generated = len(spec.prompt_token_ids), choice.resumed_token_ids
    return Sequence(
        request_id=spec.request_id,
        choice=choice.index,
        token_ids=[*spec.prompt_token_ids, *generated],
        num_prompt_tokens=num_prompt_tokens,
        final_length=num_prompt_tokens + spec.max_tokens,
        min_length=num_prompt_tokens + spec.min_tokens,
        end_token_ids=spec.end_token_ids,
        sampling=choice.sampling if leads else replace(choice.sampling, prompt_logprobs=None),
        arrival_time=spec.arrival_time,
        priority=spec.priority,
        cache_salt=spec.cache_salt,
        is_resume=spec.takes_over,
        constraint=choice.constraint,
        group=group,
        numerics_id=choice.resumed_numerics_id if generated else None,
    )
