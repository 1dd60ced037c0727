"""Whatever a client sends is answered or refused with a documented status, no worker sees a bad value, and nothing is left behind."""

import asyncio
import math
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from fakes.network.random_messages import changed
from harness.caller import Answer
from harness.service import VOCAB_SIZE, Service, real_service, status_of
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from clients.request import Request, generation_spec
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.wire.columns import Ids
from worker.step import LaneAdmission, Step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MAX_MODEL_LEN = 160
TIMEOUT_SECONDS = 60.0  # of one call; nothing here takes seconds
NUM_EXAMPLES = 200 if settings.default.max_examples <= 100 else 10_000  # `make test-all` has the thorough profile
FUZZ = settings(max_examples=NUM_EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
    "{% for tool in tools or [] %}{{ tool.function.name }}{{ tool.function.parameters | tojson }}{% endfor %}{{ a }}"
)
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["a"]}'
CHAT = pb.Chat(
    messages=[
        pb.ChatMessage(role="user", content="x"),
        pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(name="f", arguments='{"a": 1}')]),
    ],
    tools=[pb.Tool(name="f", description="does f", parameters_schema='{"type": "object"}')],
    template_arguments={"a": pb.TemplateValue(int_value=3)},
)
#: Values that fields may have, so that not everything is refused at once. A None: no others, as a new grammar costs half a second.
VALUES: dict[str, list[Any]] = {
    "GenerationSpec.model": ["model", ""],
    "GenerationSpec.request_id": ["name", "another"],
    "GenerationSpec.n": [1, 2, 3, 5],
    "GenerationSpec.text": ["a", "b" * 17, "Once upon"],
    "TokenIds.ids": [0, 97, 319],
    "SamplingParams.temperature": [0.0, 0.7, 1.0],
    "SamplingParams.top_p": [0.1, 0.9, 1.0],
    "SamplingParams.min_p": [0.0, 0.1, 1.0],
    "SamplingParams.repetition_penalty": [0.1, 1.0, 1.5],
    "SamplingParams.presence_penalty": [0.0, 1.0, -2.0],
    "SamplingParams.frequency_penalty": [0.0, 1.0, -2.0],
    "LogitBiasEntry.key": [0, 97, 257, 319],
    "LogitBiasEntry.value": [1.0, -100.0, 100.0],
    "StoppingParams.max_tokens": [0, 1, 7, 20],
    "StoppingParams.min_tokens": [0, 1, 4],
    "StoppingParams.stop": ["a", "ab", "\n"],
    "StoppingParams.stop_token_ids": [97, 257, 319],
    "OutputOptions.top_logprobs": [0, 1, 20],
    "OutputOptions.prompt_logprobs": [0, 1, 20],
    "OutputOptions.stream_interval": [1, 3],
    "Constraint.json_schema": [SCHEMA, '{"type": "wrong"}', "{", None],
    "Constraint.regex": ["[ab]{2,4}", "(", "", None],
    "Constraint.grammar": ['start: "a" | "b" start', "start: nothing", None],
    "Alternatives.texts": ["yes", None],
    "ChatMessage.role": ["user", "tool"],
    "Tool.name": ["f"],
    "Tool.parameters_schema": ["{}", '{"a": [1]}', "[]", "{"],
    "ToolCall.arguments": ["{}", '{"a": [1]}', "text"],
    "TemplateArgumentsEntry.key": ["a", "messages", "eos_token"],
}
DOCUMENTED = {"INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"}


class Watch:
    """Stands before the worker's runner and notes what is outside the documented ranges."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.complaints: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, step: Step) -> Any:
        for admission in step.admissions:
            self.complaints += [f"{what}: {admission}" for what, holds in _checks(admission).items() if not holds]
        return self._runner.launch(step)


def _checks(admission: LaneAdmission) -> dict[str, bool]:
    sampling, num_tokens = admission.sampling, len(admission.token_ids)
    return {
        "temperature": 0 <= sampling.temperature < math.inf,
        "top_p": 0 < sampling.top_p <= 1,
        "top_k": 0 <= sampling.top_k < VOCAB_SIZE,
        "min_p": 0 <= sampling.min_p <= 1,
        "repetition_penalty": 0 < sampling.repetition_penalty < math.inf,
        "other penalties": max(abs(sampling.presence_penalty), abs(sampling.frequency_penalty)) <= 2,
        "biases": len(sampling.bias_token_ids) <= 1024 and bool((abs(sampling.bias_values) <= 100).all()),
        "alternatives": sampling.top_logprobs <= 20 and (sampling.prompt_logprobs or 0) <= 20,
        "ids": all(_are_tokens(ids) for ids in (admission.token_ids, admission.end_token_ids, sampling.bias_token_ids)),
        "lengths": 1 <= admission.num_prompt_tokens <= num_tokens <= admission.final_length <= MAX_MODEL_LEN,
        "minimum length": admission.min_length <= admission.final_length,
    }


def _are_tokens(ids: Ids) -> bool:
    return not len(ids) or int(ids.max()) < VOCAB_SIZE


class Subject:
    """The service, on a loop that goes on while hypothesis thinks, and a request whose answer is known."""

    def __init__(self, loop: asyncio.AbstractEventLoop, service: Service) -> None:
        self._loop, self.service = loop, service
        self.watch = Watch(service.worker.device._runner)
        service.worker.device._runner = self.watch
        self.num_sent = 0
        self._canary = self.run(self._ask_canary())
        self.bases = self._bases()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _ask_canary(self) -> Any:
        return self.service.stream("Canary", temperature=0, max_tokens=6, n=2, ignore_eos=True)

    def _bases(self) -> list[pb.GenerationSpec]:
        short: dict[str, Any] = {"max_tokens": 5, "seed": 1}
        requests = [
            Request("Once", **short),
            Request(token_ids=[97, 98, 99], n=3, logprobs=True, **short),
            Request("Once", stop=["a", "bc"], min_tokens=2, logit_bias={97: 5.0}, prompt_logprobs=2, **short),
            Request("Once", regex="[ab]{2,4}", **short),
            Request("Once", json_schema=SCHEMA, **{**short, "max_tokens": 20}),
            Request("Once", alternatives=["yes", "no"], **short),
        ]
        chat = pb.GenerationSpec(chat=CHAT, stopping=pb.StoppingParams(max_tokens=5))
        return [*(generation_spec(request) for request in requests), chat, self._resume(), self._resume()]

    def _resume(self) -> pb.GenerationSpec:
        """Goes on with the second choice of the canary."""
        started = self._canary.started
        received = [pb.ResumedChoice(index=0, token_ids=self._canary.choices[0].token_ids, finished=True)]
        received += [pb.ResumedChoice(index=1, token_ids=self._canary.choices[1].token_ids[:3])]
        resume = pb.Resume(
            key=started.resume_key,
            effective=started.effective,
            prompt_token_ids=started.prompt_token_ids,
            model_fingerprint=started.model_fingerprint,
            choices=received,
        )
        return pb.GenerationSpec(request_id=started.request_id, resume=resume)

    async def send(self, spec: pb.GenerationSpec, streamed: bool) -> Answer | None:
        """The answer, or None for a refusal with a documented status; now and then the canary as well."""
        self.num_sent += 1
        if self.num_sent % 50 == 0:
            assert (await self._ask_canary()).shown == self._canary.shown
        ask = self.service.stream_of if streamed else self.service.unary_of
        try:
            return await ask(spec, TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            names_numerics = any(choice.numerics_id for choice in spec.resume.choices)
            assert error.code().name in DOCUMENTED | ({"UNAVAILABLE"} if names_numerics else set()), error
            assert error.details() and "\n" not in error.details()
            return None
        finally:
            assert not self.watch.complaints

    async def send_bytes(self, serialized: bytes) -> str:
        """The status of a request that may be none."""
        generate = self.service.channel.unary_unary("/pypto_serving.inference.v1.InferenceService/Generate")
        status = await status_of(generate(serialized, timeout=TIMEOUT_SECONDS))
        assert not self.watch.complaints
        return status

    async def assert_nothing_is_left(self) -> None:
        assert (await self._ask_canary()).shown == self._canary.shown
        pages = (await self.service.until_at_rest()).workers[0].pages
        assert pages.free + pages.cached == 512
        assert self.service.num_ended("internal") == 0


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def subject(byte_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    model = tmp_path_factory.mktemp("fuzz") / "model"
    model.symlink_to(byte_model)
    template = model.with_name("template.jinja")
    template.write_text(TEMPLATE)
    flags = ("--max-model-len", str(MAX_MODEL_LEN), "--worker-grace-seconds", "0.05", "--chat-template", str(template))
    with running_loop() as loop:
        context = real_service(model, *flags)
        service = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
        subject = Subject(loop, service)
        yield subject
        subject.run(subject.assert_nothing_is_left())
        subject.run(context.__aexit__(None, None, None))


def assert_valid(spec: pb.GenerationSpec, answer: Answer) -> None:
    """The answer keeps the limits that it says are in force."""
    effective = answer.started.effective
    finished = {choice.index for choice in spec.resume.choices if choice.finished}
    assert [choice.index for choice in answer.choices] == [index for index in range(effective.n) if index not in finished]
    for choice in answer.choices:
        usage = choice.finished.usage
        assert choice.finished.reason in (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)
        assert len(choice.token_ids) <= usage.completion_tokens <= effective.stopping.max_tokens
        assert len(choice.logprobs) == (len(choice.token_ids) if effective.output.logprobs else 0)
        assert usage.cached_tokens < usage.prompt_tokens or usage.prompt_tokens == 0
        assert all(token_id < VOCAB_SIZE for token_id in choice.token_ids)
        entries = [*choice.logprobs, *answer.prompt_logprobs]
        assert all(-9999 <= entry.logprob <= 0 for entry in entries)
        assert all(-9999 <= other.logprob <= 0 for entry in entries for other in entry.top)


@FUZZ
@given(data=st.data())
def test_every_request_is_answered_or_refused(subject: Subject, data: st.DataObject) -> None:
    spec = data.draw(changed(subject.bases, VALUES))
    answer = subject.run(subject.send(spec, data.draw(st.booleans())))
    event("answered" if answer else "refused")
    if answer is not None:
        assert_valid(spec, answer)


@st.composite
def damaged(draw: st.DrawFn, messages: st.SearchStrategy[pb.GenerationSpec]) -> bytes:
    """A serialized request with other bytes somewhere: text that is not UTF-8, wrong lengths, unknown fields."""
    serialized = bytearray(pb.GenerateRequest(spec=draw(messages)).SerializeToString())
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(len(serialized) - 1, 0)))
        serialized[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    return bytes(serialized)


@FUZZ
@given(data=st.data())
def test_every_sequence_of_bytes_is_answered_or_refused(subject: Subject, data: st.DataObject) -> None:
    status = subject.run(subject.send_bytes(data.draw(damaged(changed(subject.bases[:3], VALUES, max_changes=1)))))
    event(status)
    assert status in {"OK", *DOCUMENTED}
