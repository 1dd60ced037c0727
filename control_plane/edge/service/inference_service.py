"""The gRPC service that clients call."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from control_plane.edge.access.callers import CALLER
from control_plane.edge.model_directory import ServedModel
from control_plane.edge.service.admission.admission import Admission, AdmittedRequest
from control_plane.edge.service.admission.parameters import check_num_tokens, check_token_ids
from control_plane.edge.service.admission.prompt import PromptEncoder, PromptLimit
from control_plane.edge.service.errors import Deadline, InvalidArgument
from control_plane.edge.service.overload import LoadShedder
from control_plane.edge.service.request_log import RequestRecord, begin_record
from control_plane.edge.service.request_streams import RequestStreams
from control_plane.edge.service.responses import EventMaker, EventWriter, ResponseBuilder, serialized_response
from control_plane.engine.ports import PromptLogprobs
from control_plane.engine.snapshot import RefusedWorker
from pypto_serving.inference.v1 import inference_pb2, inference_pb2_grpc

#: No model limits what is only tokenized.
_TOKENIZE_LIMIT = PromptLimit(tokens=1 << 20, characters=1 << 20, messages=1 << 16)
_MAX_DETOKENIZED = 1 << 20

#: Refused workers that a server tells of, and how long it waits for its engine to name them.
_MAX_REFUSED, _ENGINE_SECONDS = 16, 1.0

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """What GetServer reports, and how long requests may be."""

    version: str
    instance_id: str
    max_queued_requests: int
    num_workers: Callable[[], int]
    max_model_len: Callable[[], int]  # 0: not known yet
    refused_workers: Callable[[], Awaitable[Sequence[RefusedWorker]]]


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Lives on the clients' event loop. Errors are RequestErrors; the interceptor turns them into statuses."""

    def __init__(
        self,
        model: ServedModel,
        encoder: PromptEncoder,
        load: LoadShedder,
        admission: Admission,
        live: RequestStreams,
        server: ServerDescription,
    ) -> None:
        self._model = model
        self._encoder = encoder
        self._load = load
        self._admission = admission
        self._live = live
        self._server = server
        self._responses = ResponseBuilder(model.tokenizer)
        self._started_at = time.monotonic()

    async def Generate(self, request: inference_pb2.GenerateRequest, context: _Context) -> bytes:  # type: ignore[override]
        """Answer once, when every choice has finished; the answer is serialized already."""
        deadline, record = Deadline(context.time_remaining()), begin_record(request.spec, context)
        admitted = await self._admit(request.spec, record)
        async with self._live.open(admitted.request, admitted.choices, deadline) as stream:
            record.stream = stream
            await stream.wait_end()
        context.set_trailing_metadata(stream.rate_limits)
        size = _num_logprobs(admitted) + sum(len(choice.token_ids) for choice in stream.choices)
        return await self._encoder.run(size, serialized_response, admitted.started, stream.choices, stream.prompt_logprobs, self._responses)

    async def GenerateStream(  # type: ignore[override]  # a coroutine that writes: gRPC cancels it wherever it waits
        self, request: inference_pb2.GenerateStreamRequest, context: _Context
    ) -> None:
        """Write one Started, any number of Delta, one Finished per choice."""
        deadline, record = Deadline(context.time_remaining()), begin_record(request.spec, context)
        admitted = await self._admit(request.spec, record)
        maker = EventMaker(self._responses, admitted.started.effective.output)
        async with self._live.open(admitted.request, admitted.choices, deadline, waits_for_client=True) as stream:
            record.stream = stream
            await stream.wait_accepted()
            # By itself, and to its end: a status can follow it neither while it waits together with a message nor when it is broken off.
            await context.send_initial_metadata(stream.rate_limits)
            writer = EventWriter(context, self._live.options.slow_reader_seconds, lambda: self._live.give_up(stream))
            async with stream.interruptible():
                with writer.watched():
                    await writer.write(inference_pb2.GenerateStreamResponse(started=admitted.started))
                    while await stream.wait_output():
                        if stream.prompt_logprobs is not None:
                            prompt_logprobs, stream.prompt_logprobs = stream.prompt_logprobs, None
                            await self._write_prompt_logprobs(prompt_logprobs, _num_logprobs(admitted), writer)
                        for event in maker.events(stream.choices):
                            stream.mark_in_write(len(event.delta.token_ids))
                            await writer.write(event)
                        stream.mark_in_write(0)

    async def _admit(self, spec: inference_pb2.GenerationSpec, record: RequestRecord) -> AdmittedRequest:
        self._live.require_open()
        with self._load.reserve(spec):
            admitted = await self._admission.admit(spec, record.request_id, record.traceparent)
        record.num_prompt_tokens = admitted.started.num_prompt_tokens
        return admitted

    async def _write_prompt_logprobs(self, output: PromptLogprobs, num_logprobs: int, writer: EventWriter) -> None:
        entries, first_index = output.entries, 0
        while event := await self._encoder.run(num_logprobs, self._responses.prompt_event, entries, first_index):
            first_index += len(event.prompt_logprobs.entries)
            await writer.write(event)

    async def Tokenize(self, request: inference_pb2.TokenizeRequest, context: _Context) -> inference_pb2.TokenizeResponse:
        """Token ids of a text or a chat."""
        self._admission.check_model(request.model)
        match request.WhichOneof("prompt"):
            case "text":
                adds_special = request.add_special_tokens if request.HasField("add_special_tokens") else True
                encoding = await self._encoder.text(request.text, _TOKENIZE_LIMIT, adds_special, request.with_offsets)
            case "chat":
                encoding = await self._encoder.chat(request.chat, "chat", _TOKENIZE_LIMIT, request.with_offsets)
            case _:
                raise InvalidArgument("prompt is absent, must be text or chat")
        return inference_pb2.TokenizeResponse(
            token_ids=encoding.token_ids,
            starts=[start for start, _ in encoding.offsets],
            ends=[end for _, end in encoding.offsets],
            max_model_len=self._server.max_model_len(),
        )

    async def Detokenize(self, request: inference_pb2.DetokenizeRequest, context: _Context) -> inference_pb2.DetokenizeResponse:
        """Text of token ids."""
        self._admission.check_model(request.model)
        check_num_tokens("token_ids", len(request.token_ids), _MAX_DETOKENIZED)
        token_ids = list(request.token_ids)
        check_token_ids(token_ids, self._model.vocab_size, "token_ids")
        return inference_pb2.DetokenizeResponse(text=await self._encoder.detokenize(token_ids, request.skip_special_tokens))

    async def ListModels(self, request: inference_pb2.ListModelsRequest, context: _Context) -> inference_pb2.ListModelsResponse:
        """The served model."""
        return inference_pb2.ListModelsResponse(models=[self._description()])

    async def GetModel(self, request: inference_pb2.GetModelRequest, context: _Context) -> inference_pb2.GetModelResponse:
        """The served model, by its name."""
        self._admission.check_model(request.model)
        return inference_pb2.GetModelResponse(model=self._description())

    async def GetServer(self, request: inference_pb2.GetServerRequest, context: _Context) -> inference_pb2.GetServerResponse:
        """Version, identity and capacity of the server."""
        return inference_pb2.GetServerResponse(
            version=self._server.version,
            instance_id=self._server.instance_id,
            num_workers=self._server.num_workers(),
            max_queued_requests=self._server.max_queued_requests,
            uptime_seconds=time.monotonic() - self._started_at,
            draining=self._live.is_closed,
            refused_workers=[inference_pb2.RefusedWorker(address=each.address, reason=each.reason) for each in await self._refused()],
        )

    async def _refused(self) -> Sequence[RefusedWorker]:
        """The first of them; none where the engine does not answer, which is no reason to say nothing of the server."""
        try:
            async with asyncio.timeout(_ENGINE_SECONDS):
                return (await self._server.refused_workers())[:_MAX_REFUSED]
        except TimeoutError:
            return ()

    async def Abort(self, request: inference_pb2.AbortRequest, context: _Context) -> inference_pb2.AbortResponse:
        """End a live request."""
        if not request.request_id:
            raise InvalidArgument("request_id is empty, must name a request")
        return inference_pb2.AbortResponse(was_live=await self._live.abort(CALLER.get().scoped(request.request_id)))

    def _description(self) -> inference_pb2.Model:
        return inference_pb2.Model(
            name=self._model.name,
            architecture=self._model.architecture,
            fingerprint=self._model.fingerprint,
            vocab_size=self._model.vocab_size,
            max_model_len=self._server.max_model_len(),
            end_token_ids=sorted(self._model.end_token_ids),
            has_chat_template=self._model.chat_template is not None,
            default_sampling=self._model.default_sampling,
        )


def _num_logprobs(admitted: AdmittedRequest) -> int:
    """How many log probabilities of the prompt the client wants, alternatives included."""
    output = admitted.started.effective.output
    return len(admitted.request.prompt_token_ids) * (1 + output.prompt_logprobs) if output.HasField("prompt_logprobs") else 0
