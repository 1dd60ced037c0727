"""An engine that generates scripted tokens, and a server of ours around it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
from fakes.text.tokenizers import EOS, byte_tokenizer

from control_plane.core.pages.page_pool import PageCounts
from control_plane.core.step import TokenLogprob, ids
from control_plane.edge.client_server import METHODS, ClientServer
from control_plane.edge.config import LoggedRequests, StreamOptions
from control_plane.edge.metrics.counts import CallCounts
from control_plane.edge.model_directory import ServedModel
from control_plane.edge.service.admission.admission import Admission
from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.edge.service.admission.parameters import BUILT_IN_SAMPLING
from control_plane.edge.service.admission.prompt import PromptEncoder
from control_plane.edge.service.admission.resume import Replayer
from control_plane.edge.service.inference_service import InferenceService, ServerDescription
from control_plane.edge.service.overload import LoadShedder, LoopLag
from control_plane.edge.service.request_log import RequestLog
from control_plane.edge.service.request_streams import RequestStreams
from control_plane.edge.text.chat_template import ChatTemplate
from control_plane.edge.text.constraint.compiler import ConstraintCompiler
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import (
    Failure,
    FinishReason,
    FrontEnd,
    GenerationRequest,
    Outputs,
    PromptLogprobs,
    RequestFailed,
    SequenceFinished,
)
from control_plane.engine.snapshot import EngineSnapshot, RefusedWorker, WorkerSnapshot
from pypto_serving.inference.v1 import inference_pb2, inference_pb2_grpc

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
VOCAB_SIZE = 320
MAX_MODEL_LEN = 64


def served_model(**changes: Any) -> ServedModel:
    """A model with the byte tokenizer; `changes` are fields of ServedModel."""
    model = ServedModel(
        name="bytes",
        architecture="FakeForCausalLM",
        fingerprint="f1",
        vocab_size=VOCAB_SIZE,
        end_token_ids=frozenset({EOS}),
        default_sampling=BUILT_IN_SAMPLING,
        tokenizer=byte_tokenizer(adds_bos=True),
        chat_template=ChatTemplate(TEMPLATE, {}),
    )
    return replace(model, **changes)


def compiler_of(model: ServedModel) -> ConstraintCompiler:
    """What compiles grammars for a model's tokens."""
    return ConstraintCompiler(model.tokenizer, model.vocab_size, model.end_token_ids)


class ScriptedEngine:
    """Gives every request the tokens of `script`, one per turn of the event loop, as far as its limits allow. Implements EnginePort.

    `failure` fails every request instead. Tokens wait for `gate`, which is open at first.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.failure: RequestFailed | None = None
        self.front_end: FrontEnd
        self.snapshot = EngineSnapshot()
        self.lag_seconds = 0.0
        self.submitted: list[GenerationRequest] = []
        self.ended: dict[str, Failure] = {}  # by `end`
        self.finished: list[int] = []  # by `finish`
        self.held: set[str] = set()
        self.ever_held: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._paces: dict[str, asyncio.Event] = {}

    def seconds_since_turn(self) -> float:
        return self.lag_seconds

    def submit(self, request: GenerationRequest) -> None:
        self.submitted.append(request)
        if self.failure:
            self.front_end.publish(Outputs(failed=[replace(self.failure, request_id=request.request_id)]))
            return
        self.front_end.publish(Outputs(accepted=[request.request_id]))
        if request.choices:
            self._paces[request.request_id] = asyncio.Event()
            self._paces[request.request_id].set()
            self._tasks[request.request_id] = asyncio.get_running_loop().create_task(self._generate(request))

    def finish(self, number: int) -> None:
        self.finished.append(number)

    def hold(self, request_id: str) -> None:
        self.held.add(request_id)
        self.ever_held.add(request_id)
        self._paces[request_id].clear()

    def unhold(self, request_id: str) -> None:
        self.held.discard(request_id)
        self._paces[request_id].set()

    def end(self, request_id: str, failure: Failure, message: str) -> None:
        task = self._tasks.pop(request_id, None)
        if task is not None and not task.done():
            self.ended[request_id] = failure
            task.cancel()
            self.front_end.publish(Outputs(failed=[RequestFailed(request_id, failure, message)]))

    async def abort(self, request_id: str) -> bool:
        is_live = request_id in self._tasks and not self._tasks[request_id].done()
        self.end(request_id, Failure.CANCELLED, "request aborted")
        return is_live

    def drain(self) -> None: ...

    async def _generate(self, request: GenerationRequest) -> None:
        choice = request.choices[0]
        if choice.sampling.prompt_logprobs is not None:
            entries = [TokenLogprob(token_id, None) for token_id in request.prompt_token_ids]
            self.front_end.publish(Outputs(prompt_logprobs=[PromptLogprobs(request.request_id, [entries])]))
        index = len(choice.resumed_token_ids)
        for token_id in self.script[index:]:
            await self.gate.wait()
            await self._paces[request.request_id].wait()
            await asyncio.sleep(0)
            if choice.number in self.finished:
                self.front_end.publish(Outputs(finished=[_finished(request, index, FinishReason.STOP, None)]))
                return
            if index == request.max_tokens:
                break
            index += 1
            if self._emit(request, token_id, index):
                return
        if index == request.max_tokens:
            self.front_end.publish(Outputs(finished=[_finished(request, index, FinishReason.LENGTH, None)]))

    def _emit(self, request: GenerationRequest, token_id: int, index: int) -> bool:
        """Publish a token, and the end if it is one."""
        choice = request.choices[0]
        outputs = Outputs(numbers=ids([choice.number]), token_ids=ids([token_id]))
        if choice.sampling.logprobs:
            outputs.logprobs.append((0, TokenLogprob(token_id, -0.5, ((7, -1.0),))))
        if token_id in request.end_token_ids:
            outputs.finished.append(_finished(request, index, FinishReason.STOP, token_id))
        elif index == request.max_tokens:
            outputs.finished.append(_finished(request, index, FinishReason.LENGTH, None))
        self.front_end.publish(outputs)
        return bool(outputs.finished)


def _finished(request: GenerationRequest, count: int, reason: FinishReason, end_token_id: int | None) -> SequenceFinished:
    number = request.choices[0].number
    return SequenceFinished(number, reason, end_token_id, len(request.prompt_token_ids), count, 0, 0, 0.1, 0.2, 0.3)


@dataclass
class ScriptedControlPlane:
    """What a test may touch of a server around a scripted engine."""

    engine: ScriptedEngine
    live: RequestStreams
    calls: CallCounts
    limit: ContextLimit
    server: ClientServer
    channel: grpc.aio.Channel
    lag: LoopLag

    @property
    def stub(self) -> "inference_pb2_grpc.InferenceServiceAsyncStub":
        return inference_pb2_grpc.InferenceServiceStub(self.channel)

    async def generate(self, **spec: Any) -> inference_pb2.GenerateResponse:
        return await self.stub.Generate(inference_pb2.GenerateRequest(spec=inference_pb2.GenerationSpec(**spec)))

    def stream(self, **spec: Any) -> "grpc.aio.UnaryStreamCall":
        return self.stub.GenerateStream(inference_pb2.GenerateStreamRequest(spec=inference_pb2.GenerationSpec(**spec)))

    async def events(self, **spec: Any) -> list[inference_pb2.GenerateStreamResponse]:
        return [event async for event in self.stream(**spec)]

    def join_worker(self, max_model_len: int = MAX_MODEL_LEN) -> None:
        worker = WorkerSnapshot("w:1", "i", 1, "n", 0, 0, 0, 0, PageCounts(free=10))
        self.engine.snapshot = EngineSnapshot(workers=(worker,), max_model_len=max_model_len)


async def _nobody() -> Sequence[RefusedWorker]:
    return ()


@asynccontextmanager
async def scripted_control_plane(
    script: Sequence[int] = (*b"hello", EOS),
    model: ServedModel | None = None,
    has_worker: bool = True,
    grace_seconds: float = 5.0,
    stream_options: StreamOptions | None = None,
    options: EngineOptions | None = None,
) -> AsyncIterator[ScriptedControlPlane]:
    """A real gRPC server on a free port, around an engine that follows `script`."""
    model = model or served_model()
    engine = ScriptedEngine(script)
    calls = CallCounts(METHODS)
    lag = LoopLag(calls, (stream_options or StreamOptions()).max_delta_delay_seconds)
    engine.front_end = live = RequestStreams(asyncio.get_running_loop(), engine, lag, stream_options)
    limit = ContextLimit(grace_seconds, max_waiting=2)
    encoder, replayer = PromptEncoder(model), Replayer()
    server = ClientServer("127.0.0.1", 0, RequestLog(LoggedRequests.ALL, calls.observe_call).observe_call)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        plane = ScriptedControlPlane(engine, live, calls, limit, server, channel, lag)
        if has_worker:
            plane.join_worker()
        server_description = ServerDescription("1.0", "instance", 100, lambda: len(engine.snapshot.workers), lambda: limit.tokens, _nobody)
        load = LoadShedder(options or EngineOptions(), lambda: engine.snapshot, lag)
        admission = Admission(model, encoder, compiler_of(model), replayer, limit)
        service = InferenceService(model, encoder, load, admission, live, server_description)
        await server.start(service, limit, engine, LoopLag(calls, 0.0))  # how late this machine runs refuses no call of a test
        try:
            yield plane
        finally:
            await server.stop(0)
            encoder.close()
            replayer.close()
