"""State of one request on the client: what was asked for and what has been received. It performs no I/O."""

from dataclasses import dataclass, field

import grpc

from clients.errors import RateLimits, ServingError
from clients.request import Request, call_metadata, generation_spec
from clients.results import Choice, Completion, Delta, Event, Finished, PromptLogprobs, Started, TokenLogprob
from pypto_serving.inference.v1 import inference_pb2 as pb


@dataclass(slots=True)
class _Received:
    token_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    numerics_id: str = ""
    finished: Finished | None = None


class StreamState:
    """Turns responses into events, each exactly once over any number of streams, and says how to ask for the rest.

    Raises ServingError (INVALID_ARGUMENT) from the constructor when the request does not fit on the wire.
    """

    def __init__(self, request: Request) -> None:
        self._spec = generation_spec(request)
        self._with_logprobs = self._spec.output.logprobs
        self.metadata = call_metadata(request)
        self._started: pb.Started | None = None
        self._received: dict[int, _Received] = {}
        self._prompt_logprobs: list[TokenLogprob] = []
        self.rate_limits: RateLimits = ()  # to be set before the first response is received

    @property
    def request_id(self) -> str:
        return self._started.request_id if self._started else self._spec.request_id

    @property
    def is_started(self) -> bool:
        return self._started is not None

    @property
    def is_complete(self) -> bool:
        """Whether every choice has finished."""
        return self.is_started and all(received.finished for received in self._received.values())

    @property
    def num_tokens(self) -> int | None:
        """Tokens received, over all choices; None before Started."""
        return sum(len(received.token_ids) for received in self._received.values()) if self.is_started else None

    @property
    def numerics_id(self) -> str:
        """Of the worker that the first choice's tokens are from."""
        return self._received[0].numerics_id

    def next_request(self) -> pb.GenerateStreamRequest:
        """The request itself, or once it has started, the request for what is still missing."""
        if self._started is None:
            return pb.GenerateStreamRequest(spec=self._spec)
        spec = pb.GenerationSpec()
        spec.CopyFrom(self._spec)
        for replaced in ("text", "token_ids", "chat", "sampling", "stopping", "output", "n"):  # the resume stands in their place
            spec.ClearField(replaced)
        spec.request_id = self._started.request_id
        spec.resume.CopyFrom(self._resume(self._started))
        return pb.GenerateStreamRequest(spec=spec)

    def _resume(self, started: pb.Started) -> pb.Resume:
        choices = [
            pb.ResumedChoice(
                index=index,
                token_ids=received.token_ids,
                finished=received.finished is not None,
                numerics_id=received.numerics_id,
            )
            for index, received in self._received.items()
        ]
        effective = pb.EffectiveParameters()
        effective.CopyFrom(started.effective)
        if len(self._prompt_logprobs) >= max(1, started.num_prompt_tokens):
            effective.output.ClearField("prompt_logprobs")
        return pb.Resume(
            key=started.resume_key,
            effective=effective,
            prompt_token_ids=started.prompt_token_ids,
            model_fingerprint=started.model_fingerprint,
            choices=choices,
        )

    def receive(self, response: pb.GenerateStreamResponse) -> Event | None:
        """The event in `response`, or None when it was received before; raises ServingError when it does not continue what we have."""
        if response.HasField("delta"):  # nearly all of them have one
            return self._receive_delta(response.delta)
        match response.WhichOneof("event"):
            case "started":
                return self._receive_started(response.started)
            case "prompt_logprobs":
                return self._receive_prompt_logprobs(PromptLogprobs.from_wire(response.prompt_logprobs))
            case "finished":
                return self._receive_finished(Finished.from_wire(response.finished))
        return None

    def _receive_started(self, started: pb.Started) -> Started | None:
        if self._started is None:
            self._started = started
            self._received = {index: _Received() for index in range(max(1, started.effective.n))}
            return Started.from_wire(started, self.rate_limits)
        if started.model_fingerprint != self._started.model_fingerprint:
            message = f"the stream began with model {self._started.model_fingerprint} and cannot go on with {started.model_fingerprint}"
            raise ServingError(grpc.StatusCode.FAILED_PRECONDITION, message, self.request_id)
        self._started.resume_key = started.resume_key
        return None

    def _receive_delta(self, wire: pb.Delta) -> Delta:
        delta = Delta.from_wire(wire, self._with_logprobs)
        received = self._received.get(delta.choice) or self._choice(delta.choice)
        expected = len(received.token_ids)
        if delta.first_index != expected or received.finished:
            raise self._broken(f"choice {delta.choice}: expected token {expected}, the server sent token {delta.first_index}")
        received.token_ids += delta.token_ids
        received.texts.append(delta.text)
        if delta.logprobs:
            received.logprobs += delta.logprobs
        if wire.numerics_id:
            received.numerics_id = wire.numerics_id
        return delta

    def _receive_prompt_logprobs(self, told: PromptLogprobs) -> PromptLogprobs | None:
        """What is new of them: after a resume they come again, from the first one on, unless all had come."""
        known = len(self._prompt_logprobs)
        if told.first_index > known:
            raise self._broken(f"expected the log probability of prompt token {known}, the server sent token {told.first_index}")
        entries = told.entries[known - told.first_index :]
        self._prompt_logprobs += entries
        return PromptLogprobs(entries, known) if entries else None

    def _receive_finished(self, finished: Finished) -> Finished | None:
        received = self._choice(finished.choice)
        if received.finished:
            return None
        received.finished = finished
        return finished

    def _choice(self, index: int) -> _Received:
        if index not in self._received:
            raise self._broken(f"choice {index} was not asked for, or came before Started")
        return self._received[index]

    def _broken(self, what: str) -> ServingError:
        return ServingError(grpc.StatusCode.INTERNAL, f"the stream is out of order: {what}", self.request_id)

    def cut_off_error(self) -> ServingError:
        """The failure of a stream that ended well, but too early."""
        return ServingError(grpc.StatusCode.UNAVAILABLE, "the stream ended before the answer did", self.request_id)

    def completion(self) -> Completion:
        """The whole answer; only when complete."""
        assert self._started is not None and self.is_complete
        choices = tuple(_whole_choice(index, received) for index, received in self._received.items())
        return Completion(Started.from_wire(self._started, self.rate_limits), choices, tuple(self._prompt_logprobs))


def _whole_choice(index: int, received: _Received) -> Choice:
    finished = received.finished
    assert finished is not None
    return Choice(
        index,
        "".join(received.texts),
        tuple(received.token_ids),
        tuple(received.logprobs),
        finished.reason,
        finished.matched,
        finished.usage,
        finished.timing,
    )
