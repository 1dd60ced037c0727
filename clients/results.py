"""What a caller gets."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from clients.errors import RateLimits
from pypto_serving.inference.v1 import inference_pb2 as pb


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"


_REASONS = {pb.FINISH_REASON_STOP: FinishReason.STOP, pb.FINISH_REASON_LENGTH: FinishReason.LENGTH}


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """An alternative at a position; `token` are the bytes that it stands for."""

    token_id: int
    logprob: float
    token: bytes


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of one token, from the unmodified logits; None for the first prompt token."""

    token_id: int
    logprob: float | None
    token: bytes
    top: tuple[TopLogprob, ...]

    @classmethod
    def from_wire(cls, entry: pb.TokenLogprob) -> "TokenLogprob":
        top = tuple(TopLogprob(other.token_id, other.logprob, other.token) for other in entry.top)
        return cls(entry.token_id, entry.logprob if entry.HasField("logprob") else None, entry.token, top)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; `cached_tokens` are the prompt tokens taken from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @classmethod
    def from_wire(cls, usage: pb.Usage) -> "Usage":
        return cls(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of a choice went, seen by the server, in seconds from its arrival."""

    queue_seconds: float
    first_token_seconds: float
    total_seconds: float
    num_readmissions: int

    @classmethod
    def from_wire(cls, timing: pb.Timing) -> "Timing":
        return cls(timing.queue_seconds, timing.first_token_seconds, timing.total_seconds, timing.num_readmissions)


@dataclass(frozen=True, slots=True)
class Started:
    """First event of a stream: how the request was understood."""

    request_id: str
    model: str
    model_fingerprint: str
    seed: int
    max_tokens: int
    prompt_token_ids: tuple[int, ...]
    rate_limits: RateLimits = ()  # what is left of the key's quota, by the names of OpenAI's headers
    text: ClassVar[str] = ""

    @classmethod
    def from_wire(cls, started: pb.Started, rate_limits: RateLimits = ()) -> "Started":
        effective = started.effective
        return cls(
            started.request_id,
            started.model,
            started.model_fingerprint,
            effective.sampling.seed,
            effective.stopping.max_tokens,
            tuple(started.prompt_token_ids),
            rate_limits,
        )


@dataclass(slots=True)  # not frozen, which would make each take 2 us more: there are many
class Delta:
    """New output of one choice; `first_index` is the place of the first token within the choice's output."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    first_index: int
    logprobs: tuple[TokenLogprob, ...]

    @classmethod
    def from_wire(cls, delta: pb.Delta, with_logprobs: bool = True) -> "Delta":
        # To look at an empty list costs as much as three other fields.
        entries = tuple(map(TokenLogprob.from_wire, delta.logprobs)) if with_logprobs else ()
        return cls(delta.choice, delta.text, tuple(delta.token_ids[:]), delta.first_index, entries)  # a slice takes half of an iteration


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of consecutive tokens of the prompt; those of a long one come in several events."""

    entries: tuple[TokenLogprob, ...]
    first_index: int = 0  # within the prompt
    text: ClassVar[str] = ""

    @classmethod
    def from_wire(cls, prompt_logprobs: pb.PromptLogprobs) -> "PromptLogprobs":
        return cls(tuple(TokenLogprob.from_wire(entry) for entry in prompt_logprobs.entries), prompt_logprobs.first_index)


@dataclass(frozen=True, slots=True)
class Finished:
    """End of a choice; `matched` is the stop string or the stop token that ended it, None when the length did."""

    choice: int
    reason: FinishReason
    matched: str | int | None
    usage: Usage
    timing: Timing
    text: ClassVar[str] = ""

    @classmethod
    def from_wire(cls, finished: pb.Finished) -> "Finished":
        field = finished.WhichOneof("matched")
        matched = getattr(finished, field) if field else None
        timing = Timing.from_wire(finished.timing)
        return cls(finished.choice, _REASONS[finished.reason], matched, Usage.from_wire(finished.usage), timing)


#: One event of a stream. Every event has `.text`, empty unless it is a Delta.
Event = Started | Delta | PromptLogprobs | Finished


@dataclass(frozen=True, slots=True)
class Choice:
    """One generated continuation."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    matched: str | int | None
    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `text`, `token_ids` and `finish_reason` are those of the first choice."""

    started: Started
    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]

    @property
    def request_id(self) -> str:
        return self.started.request_id

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    @property
    def usage(self) -> Usage:
        """Usage of the request: the prompt is counted once, completion tokens are those of all choices."""
        usages = [choice.usage for choice in self.choices]
        return Usage(usages[0].prompt_tokens, sum(usage.completion_tokens for usage in usages), usages[0].cached_tokens)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids; `spans` are (start, end) of each in code points of the text, empty unless asked for."""

    token_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    max_model_len: int

    @classmethod
    def from_wire(cls, response: pb.TokenizeResponse) -> "Tokens":
        spans = tuple(zip(response.starts, response.ends, strict=True))
        return cls(tuple(response.token_ids), spans, response.max_model_len)


@dataclass(frozen=True, slots=True)
class Model:
    """A served model; `max_model_len` is 0 until the first worker is in session."""

    name: str
    architecture: str
    fingerprint: str
    vocab_size: int
    max_model_len: int
    end_token_ids: tuple[int, ...]
    has_chat_template: bool

    @classmethod
    def from_wire(cls, model: pb.Model) -> "Model":
        return cls(
            model.name,
            model.architecture,
            model.fingerprint,
            model.vocab_size,
            model.max_model_len,
            tuple(model.end_token_ids),
            model.has_chat_template,
        )


@dataclass(frozen=True, slots=True)
class RefusedWorker:
    """A worker that a control plane was told of, and that does not work for it."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class Server:
    """A running control plane; `instance_id` changes at every start, `draining`: it lets what runs finish and takes no new requests."""

    version: str
    instance_id: str
    num_workers: int
    max_queued_requests: int
    uptime_seconds: float
    draining: bool
    refused_workers: tuple[RefusedWorker, ...] = ()

    @classmethod
    def from_wire(cls, server: pb.GetServerResponse) -> "Server":
        return cls(
            server.version,
            server.instance_id,
            server.num_workers,
            server.max_queued_requests,
            server.uptime_seconds,
            server.draining,
            tuple(RefusedWorker(worker.address, worker.reason) for worker in server.refused_workers),
        )
