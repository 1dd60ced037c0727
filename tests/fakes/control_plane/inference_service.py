"""An InferenceService that follows a script: token i of a choice is 100 * (choice + 1) + i, its text is the number and a space."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc
from pypto_serving.process.listening import bind

FINGERPRINT = "f1"
PROMPT_IDS = (7, 8, 9)
VOCAB_SIZE = 1000

# Clients ping every 10 s; gRPC's own default of 5 minutes would throw them out.
_OPTIONS = (("grpc.http2.min_ping_interval_without_data_ms", 5_000),)


@dataclass(frozen=True)
class StreamFault:
    """Ends one GenerateStream call after `after_tokens` tokens of it; None before Started. `code` OK cuts the stream off."""

    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    after_tokens: int | None = 0
    details: str = "scripted fault"
    retry_after_ms: int | None = None


def _running_server() -> pb.GetServerResponse:
    return pb.GetServerResponse(version="0.1.0", instance_id="i1", num_workers=1, max_queued_requests=16, uptime_seconds=3.0)


@dataclass
class FakeInferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """`faults` are used up one per GenerateStream call; None lets a call pass.

    Tokens wait for `gate`, which is open at first, except the first `free_tokens` of a call.
    """

    faults: deque[StreamFault | None] = field(default_factory=deque)
    default_max_tokens: int = 5
    tokens_per_delta: int = 1
    free_tokens: int = 0
    fingerprint: str = FINGERPRINT
    has_chat_template: bool = True
    seen: list[pb.GenerationSpec] = field(default_factory=list)
    traceparents: list[str | None] = field(default_factory=list)  # of the calls in `seen`
    num_generated: int = 0
    aborted: list[str] = field(default_factory=list)
    described: pb.GetServerResponse | None = field(default_factory=_running_server)  # None: for others only

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = asyncio.Event()

    async def GenerateStream(self, request, context):
        self.seen.append(request.spec)
        self.traceparents.append(dict(context.invocation_metadata()).get("traceparent"))
        fault = self.faults.popleft() if self.faults else None
        if fault and fault.after_tokens is None:
            await self._fail(fault, context)
        spec = request.spec
        if spec.HasField("resume") and spec.resume.model_fingerprint != self.fingerprint:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"resume.model_fingerprint: this is {self.fingerprint}")
        yield pb.GenerateStreamResponse(started=self._started(spec))
        if self._output(spec).HasField("prompt_logprobs"):
            entries = [pb.TokenLogprob(token_id=token_id) for token_id in PROMPT_IDS]
            yield pb.GenerateStreamResponse(prompt_logprobs=pb.PromptLogprobs(entries=entries))
        try:
            async for event in self._script(spec, fault, context):
                yield event
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _script(self, spec, fault, context):
        max_tokens, num_choices = self._limits(spec)
        received = {choice.index: choice for choice in spec.resume.choices}
        num_sent = 0
        for choice in range(num_choices):
            start = len(received[choice].token_ids) if choice in received else 0
            for index in range(start, max_tokens, self.tokens_per_delta):
                if fault and num_sent >= fault.after_tokens:
                    if fault.code is grpc.StatusCode.OK:
                        return
                    await self._fail(fault, context)
                if num_sent >= self.free_tokens:
                    await self.gate.wait()
                delta = self._delta(choice, index, min(index + self.tokens_per_delta, max_tokens))
                num_sent += len(delta.token_ids)
                self.num_generated += len(delta.token_ids)
                yield pb.GenerateStreamResponse(delta=delta)
            if not (choice in received and received[choice].finished):
                yield pb.GenerateStreamResponse(finished=self._finished(choice, max_tokens))

    async def _fail(self, fault, context):
        trailers = () if fault.retry_after_ms is None else (("retry-after-ms", str(fault.retry_after_ms)),)
        if fault.code is grpc.StatusCode.CANCELLED:
            trailers = (("cancelled-by", "server"),)
        await context.abort(fault.code, fault.details, trailers)

    def _limits(self, spec):
        if spec.HasField("resume"):
            return spec.resume.effective.stopping.max_tokens, spec.resume.effective.n
        stopping = spec.stopping
        return (stopping.max_tokens if stopping.HasField("max_tokens") else self.default_max_tokens), spec.n or 1

    def _output(self, spec):
        return spec.resume.effective.output if spec.HasField("resume") else spec.output

    def _started(self, spec):
        max_tokens, num_choices = self._limits(spec)
        started = pb.Started(request_id=spec.request_id or "fake-1", model="fake", model_fingerprint=self.fingerprint, resume_key=b"key")
        started.effective.sampling.seed = spec.resume.effective.sampling.seed or spec.sampling.seed or 42
        started.effective.stopping.max_tokens = max_tokens
        started.effective.n = num_choices
        started.effective.output.CopyFrom(self._output(spec))
        started.num_prompt_tokens = len(PROMPT_IDS)
        if self._output(spec).prompt_token_ids:
            started.prompt_token_ids.extend(PROMPT_IDS)
        return started

    def _delta(self, choice, start, stop):
        ids = [100 * (choice + 1) + index for index in range(start, stop)]
        return pb.Delta(choice=choice, text="".join(f"{i} " for i in ids), token_ids=ids, first_index=start)

    def _finished(self, choice, num_tokens):
        usage = pb.Usage(prompt_tokens=len(PROMPT_IDS), completion_tokens=num_tokens)
        return pb.Finished(choice=choice, reason=pb.FINISH_REASON_LENGTH, usage=usage, timing=pb.Timing(total_seconds=1.0))

    async def Tokenize(self, request, context):
        starts, ends = ([0, 2, 4], [1, 3, 5]) if request.with_offsets else ([], [])
        return pb.TokenizeResponse(token_ids=PROMPT_IDS, starts=starts, ends=ends, max_model_len=64)

    async def Detokenize(self, request, context):
        return pb.DetokenizeResponse(text=" ".join(str(i) for i in request.token_ids))

    async def ListModels(self, request, context):
        model = pb.Model(name="fake", architecture="FakeForCausalLM", fingerprint=self.fingerprint, vocab_size=VOCAB_SIZE, max_model_len=64)
        model.end_token_ids.append(2)
        model.has_chat_template = self.has_chat_template
        return pb.ListModelsResponse(models=[model])

    async def GetServer(self, request, context):
        if self.described is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no key")
        return self.described

    async def Abort(self, request, context):
        self.aborted.append(request.request_id)
        return pb.AbortResponse(was_live=request.request_id == "live")


class FakeServer:
    """Serves a FakeInferenceService on a port of its own; `kill` breaks every stream, `start` again comes back on the same port."""

    def __init__(self, service: FakeInferenceService, credentials: grpc.ServerCredentials | None = None, interceptors=()) -> None:
        self.service = service
        self._credentials, self._interceptors = credentials, interceptors
        self.port = 0
        self.health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._server: grpc.aio.Server | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = grpc.aio.server(options=_OPTIONS, interceptors=self._interceptors)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(self.service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.port = bind(self._server, "127.0.0.1", self.port, self._credentials)
        await self.set_serving(True)
        await self._server.start()

    async def set_serving(self, is_serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if is_serving else health_pb2.HealthCheckResponse.NOT_SERVING
        await self.health.set("", status)

    async def kill(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def __aenter__(self) -> "FakeServer":
        await self.start()
        return self

    async def __aexit__(self, *_) -> None:
        await self.kill()
