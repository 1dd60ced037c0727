"""What tenants have used, and what single requests were charged."""

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
class Charge:
    """What a request was charged, together with the attempts before it that it resumes."""

    account: Account
    resume_key: bytes
    identity: int  # of what its tokens follow from, as `identity_of` says
    max_tokens: int  # the most that was ever taken in
    num_prompt_tokens: int = 0
    num_new_prompt_tokens: int = 0  # those of them that are charged to this attempt
    num_generated: dict[tuple[int, int], int] = field(default_factory=dict)  # by the identity of a choice: how far it came
    end_time: float = 0.0

    def covers(self, spec: GenerationRequest) -> bool:
        """Whether a resume, after the end of this, can bring no token that was not taken in with it."""
        return spec.max_tokens <= self.max_tokens and all(choice_identity(choice) in self.num_generated for choice in spec.choices)


def identity_of(spec: GenerationRequest) -> int:
    """Tells what tokens follow from: a request that claims to go on with another one could ask for others."""
    prompt = ids(spec.prompt_token_ids).tobytes()
    return hash((prompt, spec.min_tokens, spec.end_token_ids, spec.grammar))


def choice_identity(choice: ChoiceSpec) -> tuple[int, int]:
    """The same of a choice; its log probabilities of the prompt may have been told already."""
    return choice.index, hash(replace(choice.sampling, prompt_logprobs=None))
