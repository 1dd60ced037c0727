"""Interfaces of the engine: what it needs of a worker and of text, and what it hands out."""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from control_plane.core.constraint import Constraint
from control_plane.core.sampling import SamplingParams
from control_plane.core.step import Step, StepResult, TokenLogprob, WorkerDescription


class TextStream(Protocol):
    """Turns the generated tokens of one sequence into text and looks for stop strings. A pure function of the tokens pushed."""

    @property
    def matched_stop(self) -> str | None:
        """The stop string that the text contains; from then on nothing may be pushed."""

    def push(self, token_id: int) -> str:
        """Append a generated token; returns the text that may be shown now (often empty)."""

    def finish(self) -> str:
        """Return the text still held back; an unfinished character becomes U+FFFD."""


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


class FinishReason(enum.Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"


class Failure(enum.Enum):
    """Why a request failed; the edge maps each to a gRPC status."""

    INVALID_ARGUMENT = "invalid_argument"
    ALREADY_EXISTS = "already_exists"
    QUEUE_FULL = "queue_full"
    UNAVAILABLE = "unavailable"
    ABORTED = "aborted"  # replay cap reached
    CANCELLED = "cancelled"  # ended by Abort, by its client's leaving, or taken over by a resume
    DEADLINE_EXCEEDED = "deadline_exceeded"
    READER_TOO_SLOW = "reader_too_slow"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a choice ended."""

    reason: FinishReason
    matched_stop: str | int | None = None  # stop string or end token


@dataclass(frozen=True, slots=True)
class ChoiceSpec:
    """One choice of a request. `Replay` fills in what its resumed tokens make of it, before the engine sees it."""

    index: int
    sampling: SamplingParams
    text: TextStream
    constraint: Constraint | None = None
    resumed_token_ids: Sequence[int] = ()  # generated before a resume; once replayed those up to the ending
    resumed_ending: Ending | None = None  # which they contain
    resumed_numerics_id: str | None = None  # under which they were made; None: any will do


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request as the engine takes it: validated, tokenized, every default applied."""

    request_id: str
    resume_key: bytes
    prompt_token_ids: Sequence[int]
    choices: Sequence[ChoiceSpec]  # those that are to be generated: a resume leaves out what has finished; rising indices
    max_tokens: int  # already cut to the context limit
    min_tokens: int
    end_token_ids: frozenset[int]  # end tokens of the model (unless ignored) and stop tokens of the request
    arrival_time: float  # of the engine's clock
    priority: int = 0
    cache_salt: str = ""
    takes_over: bool = False  # a resume: a live request with the same id and key is replaced


@dataclass(frozen=True, slots=True)
class RequestAccepted:
    """The engine has taken a request in: the first output of every request that is not refused."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SequenceDelta:
    """New output of one choice."""

    request_id: str
    choice: int
    first_index: int
    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[TokenLogprob] = ()
    numerics_id: str = ""  # under which the tokens were made


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

    request_id: str
    choice: int
    reason: FinishReason
    matched_stop: str | int | None  # stop string or end token
    num_prompt_tokens: int
    num_generated_tokens: int
    num_cached_tokens: int
    num_readmissions: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The end of a whole request without a result."""

    request_id: str
    failure: Failure
    message: str
    retry_after_seconds: float | None = None  # with QUEUE_FULL: when a place in the queue is likely


Output = RequestAccepted | SequenceDelta | PromptLogprobs | SequenceFinished | RequestFailed


class OutputSink(Protocol):
    """Where the engine's output goes."""

    def publish(self, outputs: Sequence[Output]) -> None:
        """Deliver all output of one pass of the loop; called on the engine's event loop, must not block."""
