"""What tenants have used, and what single requests were charged."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from control_plane.core.step import ids
from control_plane.engine.ports import ChoiceSpec, GenerationRequest, Tenant


class TokenBucket:
    """A minute's tokens, which flow in all the time. More may be used than there is: then nothing is left until that has flown in.

    It keeps what is used, not what is left, so that another limit changes no count.
    """

    def __init__(self, tokens_per_minute: int | None, now: float) -> None:
        self._limit = tokens_per_minute  # None: there is no end to them
        self._used = 0.0
        self._time = now

    def used(self, now: float) -> float:
        """Tokens used that have not flown in again."""
        if self._limit is not None:
            self._used = max(0.0, self._used - max(0.0, now - self._time) * self._limit / 60)
        self._time = max(self._time, now)
        return self._used

    def set_limit(self, tokens_per_minute: int | None, now: float) -> None:
        """Let them flow in at another rate from now on."""
        self._used = self.used(now) if tokens_per_minute is not None else 0.0
        self._limit = tokens_per_minute

    def use(self, num_tokens: int, now: float) -> None:
        """Take tokens out, whether there are so many or not."""
        if self._limit is not None:
            self._used = self.used(now) + num_tokens

    def give_back(self, num_tokens: int, now: float) -> None:
        """Put tokens back that were not needed; it never has more than a minute's."""
        self._used = max(0.0, self.used(now) - num_tokens)

    def seconds_until(self, num_tokens: int, now: float) -> float:
        """When it will hold so many tokens, which are no more than a minute's."""
        if self._limit is None:
            return 0.0
        assert num_tokens <= self._limit, f"{num_tokens} tokens are never there, a minute has {self._limit}"
        return max(0.0, (self.used(now) + num_tokens - self._limit) * 60 / self._limit)


@dataclass(slots=True, eq=False)
class Account:
    """What all requests of one tenant use together."""

    tenant: Tenant  # as it was told last
    told_time: float  # when the request arrived that told it
    bucket: TokenBucket
    num_live: int = 0

    def tell(self, tenant: Tenant, arrival_time: float, now: float) -> None:
        """Note the limits that a request brings, unless a newer one has brought others."""
        if arrival_time >= self.told_time:
            self.tenant, self.told_time = tenant, arrival_time
            self.bucket.set_limit(tenant.quota.tokens_per_minute, now)


@dataclass(slots=True, eq=False)
class Progress:
    """How far a choice came, over all attempts at it."""

    num_brought: int  # tokens that a client brought to the first attempt, and may have invented: it has them at any later one
    num_generated: int = 0  # the most that there ever were, those included
    token_ids: "array[int]" = field(default_factory=ids)  # as far as any attempt came; where they differ, those of the last one

    def has_told(self, token_ids: Sequence[int]) -> bool:
        """Whether a client may have received these tokens here."""
        return self.num_brought <= len(token_ids) and ids(token_ids) == self.token_ids[: len(token_ids)]

    def note(self, token_ids: Sequence[int]) -> None:
        """An attempt that ran has come so far."""
        self.num_generated = max(self.num_generated, len(token_ids))
        came = ids(token_ids)
        if came != self.token_ids[: len(came)]:
            self.token_ids = came


@dataclass(slots=True, eq=False)
class Charge:
    """What a request was charged, together with the attempts before it that it resumes."""

    account: Account
    resume_key: bytes
    identity: int  # of what its tokens follow from, as `identity_of` says
    max_tokens: int  # the most that was ever taken in
    num_given: int = 0  # tokens that came with it and had to be computed: the prompt, and what was not generated here
    num_new: int = 0  # those of them that are charged to this attempt
    progress: dict[tuple[int, int], Progress] = field(default_factory=dict)  # by the identity of a choice
    end_time: float = 0.0

    @property
    def num_kept_tokens(self) -> int:
        """Tokens that it keeps in memory."""
        return sum(len(each.token_ids) for each in self.progress.values())

    def has_told(self, spec: GenerationRequest) -> bool:
        """Whether all that a client says it has received of this may be true."""
        return all(self._has_told(choice) for choice in spec.choices)

    def _has_told(self, choice: ChoiceSpec) -> bool:
        progress = self.progress.get(choice_identity(choice))
        return progress.has_told(choice.resumed_token_ids) if progress else not choice.resumed_token_ids

    def covers(self, spec: GenerationRequest) -> bool:
        """Whether a resume, after the end of this, can bring no token that was not taken in with it."""
        return spec.max_tokens <= self.max_tokens and all(choice_identity(choice) in self.progress for choice in spec.choices)


def num_given_tokens(spec: GenerationRequest) -> int:
    """What comes with a request of which nothing is known: its prompt, and the tokens that it resumes, which are computed like one."""
    return len(spec.prompt_token_ids) + sum(len(choice.resumed_token_ids) for choice in spec.choices)


def identity_of(spec: GenerationRequest) -> int:
    """Tells what tokens follow from: a request that claims to go on with another one could ask for others."""
    prompt = ids(spec.prompt_token_ids).tobytes()
    return hash((prompt, spec.min_tokens, spec.end_token_ids, spec.grammar))


def choice_identity(choice: ChoiceSpec) -> tuple[int, int]:
    """The same of a choice; its log probabilities of the prompt may have been told already."""
    return choice.index, hash(replace(choice.sampling, prompt_logprobs=None))
