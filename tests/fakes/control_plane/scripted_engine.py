"""An engine that generates scripted tokens, and a server of ours around it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio
from fakes.text.tokenizers import EOS, byte_tokenizer

from control_plane.core.pages.page_pool import PageCounts
from control_plane.core.step import TokenLogprob
from control_plane.edge.client_server import METHODS, ClientServer
from control_plane.edge.config import StreamOptions
from control_plane.edge.metrics.recorders import CallRecorder
from control_plane.edge.model_directory import ServedModel
from control_plane.edge.service.admission.admission import Admission
from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.edge.service.admission.parameters import BUILT_IN_SAMPLING
from control_plane.edge.service.admission.prompt import PromptEncoder
from control_plane.edge.service.admission.resume import Replayer
from control_plane.edge.service.inference_service import InferenceService, ServerDescription
from control_plane.edge.service.overload import LoadShedder, LoopLag
from control_plane.edge.service.request_streams import RequestStreams
from control_plane.edge.text.chat_template import ChatTemplate
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import (
    Failure,
    FinishReason,
    GenerationRequest,
    Output,
    OutputSink,
    PromptLogprobs,
    RequestAccepted,
    RequestFailed,
    SequenceDelta,
    SequenceFinished,
)
from control_plane.engine.snapshot import EngineSnapshot, WorkerSnapshot
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


class ScriptedEngine:
    """Gives every request the tokens of `script`, one per turn of the event loop, as far as its limits allow.

    `failure` fails every request instead. Tokens wait for `gate`, which is open at first.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.failure: RequestFailed | None = None
        self.sink: OutputSink
        self.submitted: list[GenerationRequest] = []
        self.ended: dict[str, Failure] = {}  # by `end`
        self.held: set[str] = set()
        self.ever_held: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._paces: dict[str, asyncio.Event] = {}

    def submit(self, request: GenerationRequest) -> None:
        self.submitted.append(request)
        if self.failure:
            self.sink.publish([replace(self.failure, request_id=request.request_id)])
        else:
            self.sink.publish([RequestAccepted(request.request_id)])
            self._paces[request.request_id] = asyncio.Event()
            self._paces[request.request_id].set()
            self._tasks[request.request_id] = asyncio.get_running_loop().create_task(self._generate(request))

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
            self.sink.publish([RequestFailed(request_id, failure, message)])

    async def _generate(self, request: GenerationRequest) -> None:
        choice = request.choices[0]
        if choice.sampling.prompt_logprobs is not None:
            entries = [TokenLogprob(token_id, None) for token_id in request.prompt_token_ids]
            self.sink.publish([PromptLogprobs(request.request_id, [entries])])
        index = len(choice.resumed_token_ids)
        for token_id in self.script[index:]:
            await self.gate.wait()
            await self._paces[request.request_id].wait()
            await asyncio.sleep(0)
            if index == request.max_tokens:
                break
            index += 1
            if self._emit(request, token_id, index):
                return
        if index == request.max_tokens:
            self.sink.publish([self._finished(request, index, FinishReason.LENGTH, None)])

    def _emit(self, request: GenerationRequest, token_id: int, index: int) -> bool:
        """Publish a token, and the end if it is one."""
        choice = request.choices[0]
        text = choice.text.push(token_id)
        matched = choice.text.matched_stop or (token_id if token_id in request.end_token_ids else None)
        ends = matched is not None or index == request.max_tokens
        logprobs = [TokenLogprob(token_id, -0.5, ((7, -1.0),))] if choice.sampling.logprobs else []
        text += choice.text.finish() if ends else ""
        outputs: list[Output] = [SequenceDelta(request.request_id, 0, index - 1, [token_id], text, logprobs)]
        if ends:
            reason = FinishReason.LENGTH if matched is None else FinishReason.STOP
            outputs.append(self._finished(request, index, reason, matched))
        self.sink.publish(outputs)
        return ends

    def _finished(self, request: GenerationRequest, count: int, reason: FinishReason, matched: str | int | None) -> SequenceFinished:
        return SequenceFinished(request.request_id, 0, reason, matched, len(request.prompt_token_ids), count, 0, 0, 0.1, 0.2, 0.3)


@dataclass
class ScriptedControlPlane:
    """What a test may touch of a server around a scripted engine."""

    engine: ScriptedEngine
    live: RequestStreams
    calls: CallRecorder
    limit: ContextLimit
    server: ClientServer
    channel: grpc.aio.Channel
    snapshot: EngineSnapshot = field(default_factory=EngineSnapshot)
    engine_lag_seconds: float = 0.0
    lag: LoopLag | None = None

    def seconds_since_turn(self) -> float:
        return self.engine_lag_seconds

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
        self.snapshot = EngineSnapshot(workers=(worker,), max_model_len=max_model_len)


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
    engine.sink = live = RequestStreams(asyncio.get_running_loop(), engine, stream_options)
    calls = CallRecorder(METHODS)
    limit = ContextLimit(grace_seconds, max_waiting=2)
    encoder, replayer = PromptEncoder(model), Replayer()
    server = ClientServer("127.0.0.1", 0, calls)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        plane = ScriptedControlPlane(engine, live, calls, limit, server, channel)
        if has_worker:
            plane.join_worker()
        server_description = ServerDescription("1.0", "instance", 100, lambda: len(plane.snapshot.workers), lambda: limit.tokens)
        lag = LoopLag(calls)
        load = LoadShedder(options or EngineOptions(), lambda: plane.snapshot, lag)
        plane.lag = lag
        service = InferenceService(model, encoder, load, Admission(model, encoder, replayer, limit), live, server_description)
        await server.start(service, limit, plane, LoopLag(calls))  # how late this machine runs refuses no call of a test
        try:
            yield plane
        finally:
            await server.stop(0)
            encoder.close()
            replayer.close()
