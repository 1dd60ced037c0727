"""What the control plane sends to a worker in one step, and what comes back.

A step is applied in the order release, admit, trim, grow, run. Every live lane with exactly one token not yet computed runs that token,
unless the step lists it in `chunks` or it has ended; see protos/pypto_serving/worker/v1/worker.proto, which is the contract.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from control_plane.core.sampling import SamplingParams

#: A page table entry that left the window of a sliding cache group.
NO_PAGE = -1


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """A set of layers whose KV shares page tables."""

    name: str
    page_tokens: int
    num_pages: int  # per partition, numbered from 0, scratch pages not counted
    page_bytes: int
    window_tokens: int | None = None  # None: every query sees all tokens before it


@dataclass(frozen=True, slots=True)
class WorkerDescription:
    """What a worker's handshake says."""

    address: str
    incarnation: str
    epoch: int
    numerics_id: str
    vocab_size: int
    max_model_len: int
    max_lanes: int
    max_step_tokens: int
    max_steps_in_flight: int
    lease_seconds: float
    num_partitions: int
    cache_groups: tuple[CacheGroup, ...]


@dataclass(frozen=True, slots=True)
class LaneAdmission:
    """Takes a sequence into a lane."""

    lane: int
    generation: int  # larger than the last one of this lane
    token_ids: Sequence[int]  # prompt and generated tokens known so far
    num_prompt_tokens: int
    num_computed_tokens: int  # leading tokens whose KV lies in the given pages already
    final_length: int  # the lane ends when it has this many tokens
    min_length: int  # end tokens can not be drawn before the lane has this many tokens
    end_token_ids: Sequence[int]
    page_tables: Sequence[Sequence[int]]  # one per cache group
    partition: int
    sampling: SamplingParams
    constrained: bool = False


@dataclass(frozen=True, slots=True)
class PageGrowth:
    """Appends a page to the page table of a lane."""

    lane: int
    group: int
    page_id: int


@dataclass(frozen=True, slots=True)
class PageTrim:
    """Says that the first entries of a lane's page table are NO_PAGE now."""

    lane: int
    group: int
    num_entries: int


@dataclass(frozen=True, slots=True)
class LaneChunk:
    """Makes a lane run another number of tokens than the implicit one; 0: it sits the step out."""

    lane: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class LaneMask:
    """Restricts what a constrained lane samples in this step."""

    lane: int
    allowed: bytes  # one bit per token id, lowest bit first; a set bit allows the token


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over a batch."""

    step_id: int  # strictly increasing, from 1
    acked_step_id: int
    released_lanes: Sequence[int] = ()
    admissions: Sequence[LaneAdmission] = ()
    trims: Sequence[PageTrim] = ()
    growths: Sequence[PageGrowth] = ()
    chunks: Sequence[LaneChunk] = ()
    masks: Sequence[LaneMask] = ()  # one for every constrained lane that samples
    num_tokens: int = 0  # tokens that run


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a token, from the unmodified logits."""

    token_id: int
    logprob: float | None  # None for the first prompt token
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


@dataclass(frozen=True, slots=True)
class PromptLogprobChunk:
    """Log probabilities of consecutive prompt tokens."""

    lane: int
    generation: int
    first_index: int
    entries: Sequence[TokenLogprob]


@dataclass(frozen=True, slots=True)
class LaneError:
    """A lane that can not go on."""

    lane: int
    generation: int
    message: str
    nothing_to_draw: bool = False  # the request's own parameters exclude every token; otherwise the worker is at fault


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to a step. It acknowledges the step, also when it carries an error."""

    step_id: int
    lanes: Sequence[int] = ()  # lanes that sampled, with their generations and tokens
    generations: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    logprobs: dict[int, TokenLogprob] | None = None  # by lane
    prompt_logprobs: Sequence[PromptLogprobChunk] = ()
    lane_errors: Sequence[LaneError] = ()
    error: str = ""  # the step failed as a whole
    device_seconds: float = 0.0
    idle_seconds: float = 0.0
