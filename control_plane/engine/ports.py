"""Interfaces of the engine: what it needs of a worker and of constraints, and what it hands out. It sees token ids only."""

import enum
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from control_plane.core.constraint import Constraint
from control_plane.core.sampling import SamplingParams
from control_plane.core.step import Step, StepResult, TokenLogprob, WorkerDescription, ids


class Worker(Protocol):
    """A session with one worker. All calls are made on the engine's event loop and none of them blocks."""

    @property
    def description(self) -> WorkerDescription:
        """What the handshake said."""

    def submit(self, step: Step) -> None:
        """Send a step; its result arrives at `WorkerEvents.step_done`."""

    def reset(self, blame: str = "") -> None:
        """Make the worker forget everything; answered by `WorkerEvents.reset_done`. Results of earlier steps do not arrive any more.

        `blame`: what was wrong with a result that it gave, if that is why and it does not know yet.
        """


class WorkerEvents(Protocol):
    """What a worker session reports to the engine, on the engine's event loop."""

    def worker_joined(self, worker: Worker) -> None:
        """A session is open and the worker holds nothing."""

    def step_done(self, worker: Worker, result: StepResult) -> None:
        """A result arrived; results come in the order of their steps."""

    def digest_mismatch(self, worker: Worker, step_id: int) -> None:
        """Both sides disagree on the state after a step, or a result is missing; the engine resets the worker."""

    def reset_done(self, worker: Worker) -> None:
        """The worker holds nothing any more."""

    def worker_draining(self, worker: Worker) -> None:
        """The worker wants to go: its sequences are to be moved, and it gets no new ones."""

    def worker_lost(self, worker: Worker, reason: str) -> None:
        """The session is over; nothing more will come from it."""


class ConstraintMaker(Protocol):
    """Makes the constraints of requests, on threads of its own: no call blocks, and the engine is woken when a mask is ready."""

    def begin(self, grammar: str, generated: Sequence[Sequence[int]]) -> Sequence[Constraint]:
        """One constraint for each choice of a request, which has taken the tokens that the choice has generated before.

        `grammar` was checked when the request was admitted; what is wrong with it, or with the tokens, is raised by `mask`.
        """


class FinishReason(enum.Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"


class Failure(enum.Enum):
    """Why a request failed; the edge maps each to a gRPC status."""

    INVALID_ARGUMENT = "invalid_argument"
    ALREADY_EXISTS = "already_exists"
    QUEUE_FULL = "queue_full"
    OVER_QUOTA = "over_quota"
    UNAVAILABLE = "unavailable"
    ABORTED = "aborted"  # replay cap reached
    CANCELLED = "cancelled"  # ended by Abort, by its client's leaving, or taken over by a resume
    DEADLINE_EXCEEDED = "deadline_exceeded"
    READER_TOO_SLOW = "reader_too_slow"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class ChoiceSpec:
    """One choice of a request."""

    index: int
    number: int  # by which output names it; whoever submits gives each of its live choices another one, below 2**32
    sampling: SamplingParams
    resumed_token_ids: Sequence[int] = ()  # generated before; they do not end it
    resumed_numerics_id: str | None = None  # under which they were made; None: any will do


@dataclass(frozen=True, slots=True)
class Quota:
    """What the requests of one tenant may use together; None: there is no limit."""

    tokens_per_minute: int | None = None
    max_requests: int | None = None  # at once


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whoever shows one of the keys of one name."""

    name: str
    quota: Quota = field(default_factory=Quota)
    is_named: bool = True  # by the operator; if not, its usage is counted with that of the others


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """What the requests of one tenant use of its quota at one moment."""

    num_requests: int  # at once
    num_tokens: int  # of a minute's, rounded up; there may be more than the quota has


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request as the engine takes it: validated, tokenized, every default applied."""

    request_id: str
    resume_key: bytes
    prompt_token_ids: Sequence[int]
    choices: Sequence[ChoiceSpec]  # those that are to be generated, by rising index; a resume leaves out what has ended, perhaps all
    max_tokens: int  # already cut to the context limit
    min_tokens: int
    end_token_ids: frozenset[int]  # end tokens of the model (unless ignored) and stop tokens of the request
    arrival_time: float  # of the engine's clock
    priority: int = 0
    cache_salt: str = ""
    grammar: str = ""  # that the output of each choice belongs to, as the constraint's library takes it; empty: anything
    takes_over: bool = False  # a resume: a live request with the same id and key is replaced
    was_accepted: bool = False  # by an engine that is gone: neither a full queue nor a drain nor a quota refuses it
    traceparent: str = ""  # the client's trace, as W3C writes it; empty: none
    tenant: Tenant | None = None  # whom it is charged to; None: nobody


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of the whole prompt; the first entry has none. They may be many, and are unpacked when they are looked at."""

    request_id: str
    parts: Sequence[Iterable[TokenLogprob]]

    @property
    def entries(self) -> Iterator[TokenLogprob]:
        """One for each token of the prompt."""
        return chain.from_iterable(self.parts)


@dataclass(frozen=True, slots=True)
class SequenceFinished:
    """The end of one choice. Times are in seconds since arrival."""

    number: int
    reason: FinishReason
    end_token_id: int | None  # with STOP, unless the choice was ended from outside
    num_prompt_tokens: int
    num_generated_tokens: int
    num_cached_tokens: int
    num_readmissions: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float
    worker: str = ""  # address of the one that it ran on last; empty: none, or not known


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The end of a whole request without a result."""

    request_id: str
    failure: Failure
    message: str
    retry_after_seconds: float | None = None  # with QUEUE_FULL and OVER_QUOTA: when it is likely to be taken in


@dataclass(slots=True)
class Outputs:
    """What one pass of the loop brought for the requests of one front end, to be taken in in the order of the fields.

    Tokens are columns: `token_ids[i]` is the next token of choice `numbers[i]`. Of one choice they come in order and without gaps.
    """

    accepted: list[str] = field(default_factory=list)  # ids of requests taken in: the first output of each that is not refused
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    numerics: list[tuple[int, str]] = field(default_factory=list)  # choices whose tokens are made under this numerics id from here on
    numbers: "array[int]" = field(default_factory=ids)
    token_ids: "array[int]" = field(default_factory=ids)
    logprobs: list[tuple[int, TokenLogprob]] = field(default_factory=list)  # of tokens that asked for them: place in the columns, entry
    finished: list[SequenceFinished] = field(default_factory=list)
    failed: list[RequestFailed] = field(default_factory=list)
    started: list[str] = field(default_factory=list)  # ids of requests of which a sequence runs for the first time
    usage: list[tuple[str, TenantUsage]] = field(default_factory=list)  # of tenants with a quota, as requests were accepted or refused

    @property
    def is_empty(self) -> bool:
        """Whether it brought nothing."""
        return not self.numbers and self.has_tokens_only

    @property
    def has_tokens_only(self) -> bool:
        """Whether it brought nothing but tokens, with or without log probabilities, as most do."""
        events = self.accepted or self.prompt_logprobs or self.numerics or self.finished or self.failed or self.started or self.usage
        return not events


class FrontEnd(Protocol):
    """A session with whoever submits requests and gets their output; a key of dictionaries, by identity."""

    def publish(self, outputs: Outputs) -> None:
        """Deliver what a pass brought, if it brought something; called on the engine's event loop, must not block."""
