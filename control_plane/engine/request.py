"""A live request: the choices that have not ended."""

from dataclasses import dataclass, field, replace

from control_plane.core.sequence import Sequence
from control_plane.core.sibling_group import SiblingGroup
from control_plane.engine.generation import Generation
from control_plane.engine.ports import ChoiceSpec, Ending, FinishReason, GenerationRequest


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request with choices that have not ended."""

    spec: GenerationRequest
    open: list[Generation] = field(default_factory=list)  # choices that go on, by rising index
    ended: list[tuple[Generation, Ending]] = field(default_factory=list)  # choices whose ending a resume contains
    reason: FinishReason = FinishReason.STOP  # of the whole: LENGTH once a choice ended so
    has_tokens: bool = False  # of any choice
    held: bool = False  # its reader is slow: nothing runs for it until it is let go
    leader: Sequence | None = None  # of the lowest choice that goes on: it computes the prompt for all, and tells its log probabilities

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache; what the choices share among themselves does not count."""
        return self.leader.num_cached_tokens if self.leader else 0


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
        generation = Generation(live, choice.index, choice.text, sequence, len(choice.resumed_token_ids))
        if ending:
            live.ended.append((generation, ending))
            continue
        live.open.append(generation)
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
