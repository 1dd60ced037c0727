"""What a client was given in the end."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio

from clients import AsyncClient, ServingError
from clients.request import Request, generation_spec
from clients.results import Delta, Finished, PromptLogprobs, Started, TokenLogprob
from pypto_serving.inference.v1 import inference_pb2 as pb

if TYPE_CHECKING:
    from pypto_serving.inference.v1.inference_pb2_grpc import InferenceServiceAsyncStub

_EVENTS: dict[str, Any] = {"started": Started, "delta": Delta, "prompt_logprobs": PromptLogprobs, "finished": Finished}


@dataclass
class Answer:
    """The answer to one request, put together from its events."""

    token_ids: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by choice
    text: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=lambda: defaultdict(list))
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    endings: dict[int, tuple[object, ...]] = field(default_factory=dict)
    broken_rules: list[str] = field(default_factory=list)

    @classmethod
    async def to(cls, client: AsyncClient, request: dict[str, Any]) -> "Answer":
        """Ask and listen to the end."""
        answer = cls()
        try:
            async for event in client.stream(**request):
                answer.take(event)
        except ServingError as error:
            answer.broken_rules.append(f"failed: {error}")
        return answer

    @classmethod
    async def to_plain(cls, stub: "InferenceServiceAsyncStub", request: dict[str, Any]) -> "Answer":
        """The same without our client: one call, which nothing may end before its time."""
        answer = cls()
        try:
            async for message in stub.GenerateStream(pb.GenerateStreamRequest(spec=generation_spec(Request(**request)))):
                kind = message.WhichOneof("event")
                answer.take(_EVENTS[kind].from_wire(getattr(message, kind)))
        except grpc.aio.AioRpcError as error:
            answer.broken_rules.append(f"failed: {error.code().name}: {error.details()}")
        return answer

    def take(self, event: object) -> None:
        """Add an event."""
        match event:
            case Delta():
                self._take_delta(event)
            case PromptLogprobs():
                self.prompt_logprobs.append(event)
            case Finished():
                if event.choice in self.endings:
                    self.broken_rules.append(f"choice {event.choice} ends twice")
                self.endings[event.choice] = (event.reason, event.matched, event.usage.prompt_tokens, event.usage.completion_tokens)

    def _take_delta(self, delta: Delta) -> None:
        expected = len(self.token_ids[delta.choice])
        if delta.first_index != expected or delta.choice in self.endings:
            self.broken_rules.append(f"choice {delta.choice}: token {delta.first_index} comes where {expected} is due")
        self.token_ids[delta.choice] += delta.token_ids
        self.text[delta.choice] += delta.text
        self.logprobs[delta.choice] += delta.logprobs

    def differences(self, undisturbed: "Answer") -> list[str]:
        """All in which this answer departs from an undisturbed one, and the rules that either broke."""
        found = [f"rule broken: {rule}" for rule in self.broken_rules]
        found += [f"rule broken, undisturbed: {rule}" for rule in undisturbed.broken_rules]
        for name in ("token_ids", "text", "logprobs", "endings"):
            ours, theirs = getattr(self, name), getattr(undisturbed, name)
            for choice in sorted(ours.keys() | theirs.keys()):
                found += _difference(f"choice {choice}: {name}", ours.get(choice, ()), theirs.get(choice, ()))
        return found + _difference("prompt_logprobs", self.prompt_logprobs, undisturbed.prompt_logprobs)


def _difference(what: str, ours: Sequence[object], theirs: Sequence[object]) -> list[str]:
    """One entry with everything from the first difference on, if there is one."""
    if ours == theirs or not (ours or theirs):
        return []
    index = next((i for i, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two), min(len(ours), len(theirs)))
    lengths = f"{what} differ from {index} on, length {len(ours)}, undisturbed {len(theirs)}"
    return [f"{lengths}:\n    {ours[index:]!r}\n  undisturbed:\n    {theirs[index:]!r}"]
