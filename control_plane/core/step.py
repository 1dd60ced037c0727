"""What the control plane sends to a worker in one step, and what comes back.

A step is applied in the order release, admit, trim, grow, run. Every live lane with exactly one token not yet computed runs that token,
unless the step lists it among its chunks or it has ended; see protos/pypto_serving/worker/v1/worker.proto, which is the contract.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from control_plane.core.sampling import SamplingParams

#: A page table entry that left the window of a sliding cache group, as on the wire.
NO_PAGE = 0xFFFFFFFF

#: Tokens whose log probabilities are unpacked at a time.
_UNPACKED_TOKENS = 64


def ids(values: Iterable[int] = ()) -> "array[int]":
    """A column of integers from 0 below 2**32, packed as on the wire."""
    return array("I", values)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """A set of layers whose KV shares page tables."""

    page_tokens: int
    num_pages: int  # per partition, numbered from 0, scratch pages not counted
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
    features: frozenset[str] = frozenset()  # beyond the version of the protocol


@dataclass(frozen=True, slots=True)
class LaneAdmission:
    """Takes a sequence into a lane."""

    lane: int
    generation: int  # larger than the last one of this lane
    token_ids: Sequence[int]  # prompt and generated tokens known so far
    num_prompt_tokens: int
    num_computed_tokens: int  # leading tokens whose KV lies in the given pages already
    final_length: int  # the lane ends when it has this many tokens
    min_length: int  # end tokens cannot be drawn before the lane has this many tokens
    end_token_ids: Sequence[int]
    page_tables: Sequence[Sequence[int]]  # one per cache group
    partition: int
    sampling: SamplingParams
    constrained: bool = False
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over a batch. Entries of columns with the same first word belong together."""

    step_id: int  # strictly increasing, from 1
    acked_step_id: int
    released_lanes: Sequence[int] = field(default_factory=ids)
    admissions: Sequence[LaneAdmission] = ()
    trimmed_lanes: Sequence[int] = field(default_factory=ids)
    trimmed_groups: Sequence[int] = field(default_factory=ids)
    trimmed_entries: Sequence[int] = field(default_factory=ids)  # so many first entries of the page table are NO_PAGE now
    grown_lanes: Sequence[int] = field(default_factory=ids)
    grown_groups: Sequence[int] = field(default_factory=ids)
    grown_pages: Sequence[int] = field(default_factory=ids)  # appended to the page table
    chunk_lanes: Sequence[int] = field(default_factory=ids)
    chunk_tokens: Sequence[int] = field(default_factory=ids)  # run instead of the implicit one; 0: the lane sits the step out
    masks: Mapping[int, bytes] = field(default_factory=dict)  # of every constrained lane that samples: what Constraint.mask returned
    num_tokens: int = 0  # tokens that run


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a token, from the unmodified logits."""

    token_id: int
    logprob: float | None  # None for the first prompt token
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


@dataclass(frozen=True, slots=True, eq=False)
class PackedLogprobs(Sequence[TokenLogprob]):
    """Log probabilities of consecutive tokens, unpacked when they are looked at: with alternatives a long prompt has a million of them."""

    token_ids: Sequence[int]
    logprobs: memoryview  # one per token
    num_alternatives: int  # per token
    top_token_ids: memoryview  # those of one token after those of the other
    top_logprobs: memoryview

    def __len__(self) -> int:
        return len(self.token_ids)

    @overload
    def __getitem__(self, index: int) -> TokenLogprob: ...
    @overload
    def __getitem__(self, index: slice) -> "PackedLogprobs": ...
    def __getitem__(self, index: int | slice) -> "TokenLogprob | PackedLogprobs":
        if isinstance(index, int):
            if not 0 <= index < len(self):
                raise IndexError(index)
            return next(iter(self[index : index + 1]))
        first, last, step = index.indices(len(self))
        assert step == 1, "consecutive tokens"
        tops = slice(first * self.num_alternatives, last * self.num_alternatives)
        span = slice(first, last)
        return PackedLogprobs(
            self.token_ids[span], self.logprobs[span], self.num_alternatives, self.top_token_ids[tops], self.top_logprobs[tops]
        )

    def __iter__(self) -> Iterator[TokenLogprob]:
        count = self.num_alternatives
        for first in range(0, len(self), _UNPACKED_TOKENS):
            part = self[first : first + _UNPACKED_TOKENS]
            tops = list(zip(part.top_token_ids.tolist(), part.top_logprobs.tolist(), strict=True))
            for row, (token_id, logprob) in enumerate(zip(part.token_ids, part.logprobs.tolist(), strict=True)):
                yield TokenLogprob(token_id, logprob, tuple(tops[row * count : (row + 1) * count]))


@dataclass(frozen=True, slots=True)
class PromptLogprobChunk:
    """Log probabilities of consecutive prompt tokens."""

    lane: int
    generation: int
    first_index: int
    entries: Sequence[TokenLogprob]


@dataclass(frozen=True, slots=True)
class LaneError:
    """A lane that cannot go on."""

    lane: int
    generation: int
    message: str
    nothing_to_draw: bool = False  # the request's own parameters exclude every token; otherwise the worker is at fault


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to a step. It acknowledges the step, also when it carries an error."""

    step_id: int
    tokens: Mapping[int, int] = field(default_factory=dict)  # sampled ones, by lane: of the sequence that it has in this step
    logprobs: Mapping[int, TokenLogprob] = field(default_factory=dict)  # likewise
    prompt_logprobs: Sequence[PromptLogprobChunk] = ()
    lane_errors: Sequence[LaneError] = ()
    error: str = ""  # the step failed as a whole
    device_seconds: float = 0.0
    idle_seconds: float = 0.0
