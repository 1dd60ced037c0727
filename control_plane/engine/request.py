"""A live request and its choices: whose they are, their sequences, and what is published about them."""

from collections.abc import Sequence as Constraints
from dataclasses import dataclass, field, replace

from control_plane.core.constraint import Constraint
from control_plane.core.sequence import Sequence
from control_plane.core.sibling_group import SiblingGroup
from control_plane.core.step import ids
from control_plane.engine.accounts import Account, Charge
from control_plane.engine.ports import ChoiceSpec, ConstraintMaker, FinishReason, FrontEnd, GenerationRequest, Outputs, SequenceFinished


@dataclass(slots=True, eq=False)
class FrontEndRequests:
    """What is live of one front end, and what the pass under way has brought for it."""

    front_end: FrontEnd
    choices: dict[int, "LiveChoice"] = field(default_factory=dict)  # by number
    outputs: Outputs = field(default_factory=Outputs)
    is_draining: bool = False  # what it submits is refused

    def pop_outputs(self) -> Outputs:
        """What came since the last call."""
        outputs, self.outputs = self.outputs, Outputs()
        return outputs


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request with choices that have not ended."""

    spec: GenerationRequest
    owner: FrontEndRequests
    open: list["LiveChoice"] = field(default_factory=list)  # choices that go on, by rising index
    reason: FinishReason = FinishReason.STOP  # of the whole: LENGTH once a choice ended so
    has_tokens: bool = False  # of any choice
    held: bool = False  # its reader is slow: nothing runs for it until it is let go
    account: Account | None = None  # to which its tokens are charged
    charge: Charge | None = None
    leader: Sequence | None = None  # of the lowest choice: it computes the prompt for all, and reports its log probabilities

    @property
    def never_ran(self) -> bool:
        """Whether nothing of it has been computed."""
        sequences = [choice.sequence for choice in self.open] + ([self.leader] if self.leader else [])
        return all(sequence.num_admissions == 0 for sequence in sequences)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache; what the choices share among themselves does not count."""
        return self.leader.num_cached_tokens if self.leader else 0


@dataclass(slots=True)
class TokenTime:
    """When choices got their last token, those of a batch at the same time. None: the gap before the next one is of no interest."""

    seconds: float | None = None


@dataclass(slots=True, eq=False)
class LiveChoice:
    """One choice of a live request."""

    request: LiveRequest
    owner: FrontEndRequests  # that of the request, here since each token goes there
    number: int  # that of the specification, for the same reason
    spec: ChoiceSpec
    sequence: Sequence
    numerics_id: str = ""  # told last
    first_token_time: float | None = None
    last_token: TokenTime = field(default_factory=TokenTime)

    @property
    def num_resumed_tokens(self) -> int:
        """Tokens generated before."""
        return len(self.spec.resumed_token_ids)

    @property
    def num_new_tokens(self) -> int:
        """Tokens generated for this stream."""
        return self.sequence.num_generated_tokens - self.num_resumed_tokens

    def finished(self, reason: FinishReason, end_token_id: int | None, now: float) -> SequenceFinished:
        """Describe the end."""
        sequence, arrival = self.sequence, self.request.spec.arrival_time
        return SequenceFinished(
            number=self.number,
            reason=reason,
            end_token_id=end_token_id,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_generated_tokens=sequence.num_generated_tokens,
            num_cached_tokens=self.request.num_cached_tokens,
            num_readmissions=max(0, sequence.num_admissions - 1),
            queue_seconds=(now if sequence.first_scheduled_time is None else sequence.first_scheduled_time) - arrival,
            first_token_seconds=0.0 if self.first_token_time is None else self.first_token_time - arrival,
            total_seconds=now - arrival,
            worker=sequence.replica.description.address if sequence.replica else "",
        )


def begin(spec: GenerationRequest, owner: FrontEndRequests, maker: ConstraintMaker | None) -> LiveRequest:
    """Make the sequences of a request. It may have none: a resume whose choices have all ended."""
    assert owner.choices.keys().isdisjoint(choice.number for choice in spec.choices), "a number stands for one live choice"
    live = LiveRequest(spec, owner)
    group = SiblingGroup() if len(spec.choices) > 1 else None
    for choice, constraint in zip(spec.choices, _constraints(spec, maker), strict=True):
        sequence = _sequence(spec, choice, constraint, group, leads=live.leader is None)
        live.leader = live.leader or sequence
        live.open.append(LiveChoice(live, owner, choice.number, choice, sequence))
    return live


def _constraints(spec: GenerationRequest, maker: ConstraintMaker | None) -> Constraints[Constraint | None]:
    if not spec.grammar:
        return [None] * len(spec.choices)
    assert maker is not None, "nobody makes constraints"
    return maker.begin(spec.grammar, [choice.resumed_token_ids for choice in spec.choices])


def _sequence(
    spec: GenerationRequest, choice: ChoiceSpec, constraint: Constraint | None, group: SiblingGroup | None, leads: bool
) -> Sequence:
    num_prompt_tokens, generated = len(spec.prompt_token_ids), choice.resumed_token_ids
    token_ids = ids(spec.prompt_token_ids)
    token_ids.extend(generated)
    return Sequence(
        request_id=spec.request_id,
        choice=choice.index,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt_tokens,
        final_length=num_prompt_tokens + spec.max_tokens,
        min_length=num_prompt_tokens + spec.min_tokens,
        end_token_ids=spec.end_token_ids,
        sampling=choice.sampling if leads else replace(choice.sampling, prompt_logprobs=None),
        arrival_time=spec.arrival_time,
        priority=spec.priority,
        cache_salt=spec.cache_salt,
        is_resume=spec.takes_over,
        traceparent=spec.traceparent,
        constraint=constraint,
        group=group,
        numerics_id=choice.resumed_numerics_id if generated else None,
    )
