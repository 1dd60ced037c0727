"""Asks the service both ways, and requires that both say the same."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest

from clients.request import Request, generation_spec
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc


@dataclass(frozen=True)
class Answer:
    """A whole answer; `deltas` are those of the stream that gave it, none for a unary one."""

    started: pb.Started
    choices: Sequence[pb.Choice]
    prompt_logprobs: Sequence[pb.TokenLogprob] = ()
    deltas: Sequence[pb.Delta] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return list(self.choices[0].token_ids)

    @property
    def finished(self) -> pb.Finished:
        return self.choices[0].finished

    @property
    def usage(self) -> pb.Usage:
        return self.finished.usage

    @property
    def reason(self) -> str:
        return pb.FinishReason.Name(self.finished.reason).removeprefix("FINISH_REASON_").lower()

    @property
    def matched(self) -> str | int | None:
        kind = self.finished.WhichOneof("matched")
        return getattr(self.finished, kind) if kind else None

    @property
    def said(self) -> object:
        """What both ways of asking agree on."""
        prompt = list(self.started.prompt_token_ids)
        assert {choice.finished.usage.prompt_tokens for choice in self.choices} == {len(prompt)}
        return self.shown, [str(entry) for entry in self.prompt_logprobs], prompt

    @property
    def shown(self) -> object:
        """What does not depend on the form of the prompt either."""
        return [_shown(choice) for choice in self.choices]


def _shown(choice: pb.Choice) -> object:
    ends = pb.Finished()
    ends.CopyFrom(choice.finished)
    for varying in ("timing", "usage"):
        ends.ClearField(varying)
    usage = choice.finished.usage
    return choice.text, list(choice.token_ids), [str(entry) for entry in choice.logprobs], str(ends), usage.completion_tokens


def resume_of(whole: Answer, received: int) -> pb.Resume:
    """What goes on behind the first tokens of an answer with one choice."""
    return pb.Resume(
        key=whole.started.resume_key,
        effective=whole.started.effective,
        prompt_token_ids=whole.started.prompt_token_ids,
        model_fingerprint=whole.started.model_fingerprint,
        choices=[pb.ResumedChoice(index=0, token_ids=whole.token_ids[:received])],
    )


class Caller:
    """Takes the fields of `clients.Request`, or a finished spec."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.stub = inference_pb2_grpc.InferenceServiceStub(channel)

    async def ask(self, *prompt: str, **fields: Any) -> Answer:
        """The answer to a request that is the same every time, streamed and whole."""
        streamed, whole = await self.stream(*prompt, **fields), await self.unary(*prompt, **fields)
        assert streamed.said == whole.said
        return streamed

    async def unary(self, *prompt: str, **fields: Any) -> Answer:
        return await self.unary_of(generation_spec(Request(*prompt, **fields)))

    async def stream(self, *prompt: str, **fields: Any) -> Answer:
        return await self.stream_of(generation_spec(Request(*prompt, **fields)))

    async def unary_of(self, spec: pb.GenerationSpec, timeout: float | None = None) -> Answer:
        response = await self.stub.Generate(pb.GenerateRequest(spec=spec), timeout=timeout)
        usages = [choice.finished.usage for choice in response.choices]
        assert response.usage.completion_tokens == sum(usage.completion_tokens for usage in usages)
        assert {response.usage.prompt_tokens} == {usage.prompt_tokens for usage in usages}
        return Answer(response.started, list(response.choices), list(response.prompt_logprobs))

    async def stream_of(self, spec: pb.GenerationSpec, timeout: float | None = None) -> Answer:
        """Collect a stream, and require its order: Started, prompt log probabilities, for each choice its deltas and one end."""
        call = self.stub.GenerateStream(pb.GenerateStreamRequest(spec=spec), timeout=timeout)
        events = [event async for event in call]
        assert [event.WhichOneof("event") for event in events].count("started") == 1
        choices: dict[int, pb.Choice] = {}
        num_resumed = {choice.index: len(choice.token_ids) for choice in spec.resume.choices}
        entries: list[pb.TokenLogprob] = []
        for event in events[1:]:
            kind = event.WhichOneof("event")
            if kind == "prompt_logprobs":
                assert not choices and event.prompt_logprobs.first_index == len(entries)
                entries += event.prompt_logprobs.entries
            else:
                _take(getattr(event, kind or ""), choices, num_resumed)
        assert all(choice.HasField("finished") for choice in choices.values())
        deltas = [event.delta for event in events if event.HasField("delta")]
        return Answer(events[0].started, [choices[index] for index in sorted(choices)], entries, deltas)

    async def refusal(self, *prompt: str, **fields: Any) -> str:
        """The message of INVALID_ARGUMENT that both ways of asking end with."""
        return await self.refusal_of(generation_spec(Request(*prompt, **fields)))

    async def refusal_of(self, spec: pb.GenerationSpec) -> str:
        errors = []
        for call in (self.unary_of(spec), self.stream_of(spec)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            errors.append((caught.value.code(), caught.value.details()))
        assert errors[0] == errors[1]
        assert errors[0][0] is grpc.StatusCode.INVALID_ARGUMENT, errors[0]
        return errors[0][1] or ""


def _take(event: pb.Delta | pb.Finished, choices: dict[int, pb.Choice], num_resumed: dict[int, int]) -> None:
    choice = choices.setdefault(event.choice, pb.Choice(index=event.choice))
    assert not choice.HasField("finished"), "something comes after the end of its choice"
    if isinstance(event, pb.Finished):
        choice.finished.CopyFrom(event)
        return
    assert event.first_index == num_resumed.get(event.choice, 0) + len(choice.token_ids)
    choice.text += event.text
    choice.token_ids.extend(event.token_ids)
    choice.logprobs.extend(event.logprobs)
