"""One choice of a request, as the engine keeps it: token ids, and counters that catch up with them."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from control_plane.core.constraint import Constraint
from control_plane.core.pages.page_tables import PageHashes, PageTables
from control_plane.core.sampling import SamplingParams
from control_plane.core.sibling_group import SiblingGroup
from control_plane.core.step import TokenLogprob

if TYPE_CHECKING:
    from control_plane.core.replica import Replica


class Suspicion:
    """Held against a sequence from a loss until it has more tokens acknowledged than ever before, with all those of the lost steps.

    A step has suspects only, or none. Those that were lost once, in the same steps, run with at most half of their number; whoever was lost
    again runs alone, so that in the end each poison is alone with its losses, and nobody else ends for them:

        lost with others --half runs--> progress: no suspect any more
                              '--lost again--> runs alone --lost alone, as often as allowed--> ends
    """

    def __init__(self, cohort: object, max_together: int) -> None:
        self.num_losses = 0
        self.num_losses_alone = 0
        self.num_tokens = 0  # computed, or in the lost steps: as many have to be acknowledged
        self._cohort = cohort  # one for all that were lost in the same steps
        self._max_together = max_together

    def count_loss(self, num_computed_tokens: int, was_alone: bool) -> None:
        """Count a loss of steps that were to compute so many tokens; `was_alone`: of no other sequence."""
        self.num_losses += 1
        self.num_losses_alone += was_alone
        self.num_tokens = max(self.num_tokens, num_computed_tokens)

    def is_cleared(self, num_acked_tokens: int, max_acked_tokens: int) -> bool:
        """Whether the sequence made progress; `max_acked_tokens` had been acknowledged before, or came from the cache."""
        return num_acked_tokens > max_acked_tokens and num_acked_tokens >= self.num_tokens

    def may_join(self, others: "list[Suspicion]") -> bool:
        """Whether the sequence may run beside those that run in the steps of suspects already."""
        if not others:
            return True
        joins = self.num_losses == 1 and others[0].num_losses == 1 and others[0]._cohort is self._cohort
        return joins and len(others) < self._max_together


@dataclass(slots=True, eq=False)
class Sequence:
    """Prompt and generated token ids; everything else can be recomputed from them.

        |<---------------- token_ids ----------------->|<- sampled in steps in flight ->|
        |<-- num_acked_tokens -->|<- in flight ->|                                      |
        0                        |               num_computed_tokens          num_tokens

    `num_computed_tokens` and `num_tokens` advance when a step is scheduled, `num_acked_tokens` and `token_ids` when its result arrives.
    """

    request_id: str
    choice: int
    token_ids: "array[int]"
    num_prompt_tokens: int
    final_length: int  # the sequence ends when it has this many tokens
    min_length: int  # end tokens cannot be drawn before it has this many tokens
    end_token_ids: frozenset[int]
    sampling: SamplingParams
    arrival_time: float
    priority: int = 0  # lower runs first
    cache_salt: str = ""
    is_resume: bool = False  # of a request that ran before
    constraint: Constraint | None = None  # has taken every generated token
    group: SiblingGroup | None = None  # the other choices of the request

    # Across all workers
    order: tuple[float, float, int] = (0.0, 0.0, 0)  # of scheduling; set when it is submitted
    hashes: PageHashes = field(init=False)
    prompt_logprobs: list[Iterable[TokenLogprob]] = field(init=False)  # joined: those of the first tokens of the prompt
    num_prompt_logprobs: int = 1  # tokens
    compute_limit: int = field(init=False)  # tokens whose KV is ever needed
    traceparent: str = ""  # the trace of its request, for whoever runs it
    numerics_id: str | None = None  # under which its tokens and log probabilities were made
    first_scheduled_time: float | None = None
    num_cached_tokens: int = 0  # of the prompt, at first admission
    num_admissions: int = 0
    passed_at: int | None = None  # overtakes counted by the waiting queue when it did not fit for the first time
    suspicion: Suspicion | None = None  # held against it since a lost step, until it makes progress
    max_acked_tokens: int = 0  # on earlier workers, and of those that came from the cache: more is progress

    # On the present worker
    replica: "Replica | None" = None
    lane: int = -1
    generation: int = 0  # never used twice; 0 while it waits
    pages: PageTables = field(init=False)
    num_computed_tokens: int = 0
    num_acked_tokens: int = 0
    num_tokens: int = field(init=False)
    plain_until: int = 0  # while fewer tokens are computed a step is one plain decode more; set when that is known

    def __post_init__(self) -> None:
        self.hashes = PageHashes(self.token_ids, self.cache_salt)
        self.prompt_logprobs = [(TokenLogprob(self.token_ids[0], None),)]
        self.num_tokens = len(self.token_ids)
        # The last token is never consumed, unless nothing is sampled at all.
        self.compute_limit = self.final_length - 1 if self.num_tokens < self.final_length else self.final_length

    @property
    def num_generated_tokens(self) -> int:
        """Generated tokens seen so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_unscheduled_tokens(self) -> int:
        """Tokens that exist, or will once the steps in flight are done, and are not scheduled yet."""
        return min(self.num_tokens, self.compute_limit) - self.num_computed_tokens

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens to be scheduled before it runs one token a step."""
        return max(0, self.num_unscheduled_tokens - 1)

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether log probabilities of prompt tokens were asked for and are not complete."""
        return self.sampling.prompt_logprobs is not None and self.num_prompt_logprobs < self.num_prompt_tokens

    @property
    def is_parked(self) -> bool:
        """Whether another choice computes the prompt for this one."""
        return self.group is not None and self.group.parks(self)

    @property
    def max_hit_tokens(self) -> int:
        """Most tokens that may come from the prefix cache: one is left to compute, and so is every prompt logprob not known yet."""
        if self.lacks_prompt_logprobs:
            return self.num_prompt_logprobs - 1  # the logits at i - 1 make entry i
        return len(self.token_ids) - 1

    @property
    def num_admission_tokens(self) -> int:
        """Tokens for which an admission takes pages."""
        return min(len(self.token_ids) + 1, self.compute_limit)

    def assign(self, replica: "Replica", lane: int, generation: int, pages: PageTables, num_cached_tokens: int) -> None:
        """Start on a worker, with the KV of `num_cached_tokens` tokens in the pages."""
        self.replica, self.lane, self.generation, self.pages = replica, lane, generation, pages
        self.num_computed_tokens = self.num_acked_tokens = num_cached_tokens
        self.max_acked_tokens = max(self.max_acked_tokens, num_cached_tokens)
        if self.num_admissions == 0:
            self.num_cached_tokens = min(num_cached_tokens, self.num_prompt_tokens - 1)
        self.num_admissions += 1

    def unassign(self) -> None:
        """Forget the worker; what is still in flight there does not count any more."""
        self.replica, self.lane, self.generation = None, -1, 0
        self.max_acked_tokens = max(self.max_acked_tokens, self.num_acked_tokens)
        self.num_computed_tokens = self.num_acked_tokens = 0
        self.num_tokens = len(self.token_ids)
        self.plain_until = 0

    def note_plain(self) -> None:
        """Find out for how long the sequence, which decodes, needs neither a page, nor a mask, and does not come to its end."""
        if self.constraint is None:
            self.plain_until = min(self.pages.num_slots, self.compute_limit, self.final_length - 1)


@dataclass(frozen=True, slots=True)
class FailedSequence:
    """A sequence that cannot go on."""

    sequence: Sequence
    message: str
    nothing_to_draw: bool = False  # its request's own fields exclude every token; the message says which, and why


@dataclass(slots=True)
class SequenceUpdates:
    """What the result of a step brought for sequences, in the order in which it is to be published.

    Tokens are columns: `token_ids[i]` is the next token of `sequences[i]`, in which each sequence comes once.
    """

    numerics_id: str  # under which all of it was made
    sent_time: float
    num_tokens: int  # that ran
    continued: bool  # some sequence had run on the worker before: if its device was idle, then not for lack of work
    prompt_logprobs: list[Sequence] = field(default_factory=list)  # complete now
    sequences: list[Sequence] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[Sequence, TokenLogprob] = field(default_factory=dict)  # of the tokens of sequences that asked for them
    ended: list[tuple[Sequence, int | None]] = field(default_factory=list)  # complete now, and the end token of those with one
    failed: list[FailedSequence] = field(default_factory=list)
