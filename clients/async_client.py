"""The client for asyncio."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from clients.connection import DEFAULT_TARGET, Credentials, open_async_channel
from clients.conversation import MessageLike
from clients.errors import ClientClosed, ServingError, from_status, rate_limits
from clients.many import DEFAULT_CONCURRENCY, Outcome, answer_many, check_concurrency
from clients.reconnection import Attempts, RetryLimits, Targets
from clients.request import Request, detokenize_request, prompt_tokenize_request, taking_request, tokenize_request
from clients.results import Completion, Event, Model, Server, Tokens
from clients.stream_state import StreamState
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1.inference_pb2_grpc import InferenceServiceStub

if TYPE_CHECKING:
    from pypto_serving.inference.v1.inference_pb2_grpc import InferenceServiceAsyncStub

Sent = TypeVar("Sent")
Got = TypeVar("Got")

_NO_CREDENTIALS = Credentials()


class AsyncClient:
    """Talks to one control plane, or to interchangeable ones (`targets`), from one event loop.

    A stream that breaks is resumed by itself: the caller sees every token exactly once, only later. `connect_seconds` is how long to try
    until a request has started, `resume_seconds` how long an interruption may last; 0 turns either off. `credentials` are for servers
    with TLS or keys. Every method raises ServingError.
    """

    def __init__(
        self,
        targets: str | Sequence[str] | Targets = DEFAULT_TARGET,
        *,
        connect_seconds: float = 5.0,
        resume_seconds: float = 60.0,
        credentials: Credentials = _NO_CREDENTIALS,
    ) -> None:
        self._targets = targets if isinstance(targets, Targets) else Targets(targets)
        self._limits = RetryLimits(connect_seconds, resume_seconds)
        self._metadata = credentials.metadata()
        self._credentials = credentials.channel_credentials()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.close()

    def with_api_key(self, api_key: str | None) -> Self:
        """The same client under another key: connections are shared, and closed with it."""
        other = copy.copy(self)
        other._metadata = Credentials(api_key=api_key).metadata()
        return other

    async def close(self) -> None:
        """Close the connections; running streams are cancelled."""
        self._closed.set()
        for channel in self._channels.values():
            await channel.close(None)

    @taking_request(Request)
    async def generate(self, request: Request) -> Completion:
        """Generate the whole answer. Takes the fields of `Request`: `await client.generate("Once", max_tokens=8)`."""
        return await self.answer(request)

    async def answer(self, request: Request) -> Completion:
        """As `generate`, for a request that is built already."""
        return await self._answer(request)

    async def _answer(self, request: Request, began_at: float | None = None) -> Completion:
        state = StreamState(request)
        async for _ in self.follow(state, request.timeout, began_at):
            pass
        return state.completion()

    def generate_many(self, requests: Iterable[Request], *, concurrency: int = DEFAULT_CONCURRENCY) -> AsyncGenerator[Outcome, None]:
        """Generate the answers of many requests, `concurrency` at a time, and yield each outcome as it comes.

        A request that fails ends nothing: its outcome has the error. One that is refused because the server's queue is full, or a
        quota of the key is used up, is tried again when the server says, until its timeout has passed; without one for ever. `requests`
        are taken as others end, so that they may be more than fit into memory. Closing the iterator cancels what is in flight.
        """
        check_concurrency(concurrency)
        return answer_many(self._answer, requests, concurrency)

    @taking_request(Request)
    def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Generate as a stream of events, each with `.text`. Takes the fields of `Request`.

        Closing the iterator (`contextlib.aclosing`), or dropping it, cancels the request.
        """
        return self.send(request)

    def send(self, request: Request) -> AsyncGenerator[Event, None]:
        """As `stream`, for a request that is built already."""
        return self.follow(StreamState(request), request.timeout)

    async def follow(self, state: StreamState, timeout: float | None, began_at: float | None = None) -> AsyncGenerator[Event, None]:
        """As `send`, for a request of which `state` may have received a part already: that is resumed.

        `timeout` counts from `began_at` (time.monotonic()); None is now.
        """
        attempts = Attempts(self._targets, self._limits, timeout, began_at=began_at)
        while not state.is_complete:
            call = self._stub(attempts.target).GenerateStream(
                state.next_request(), timeout=attempts.remaining_seconds(), metadata=(*self._metadata, *state.metadata)
            )
            failure = state.cut_off_error()
            try:
                async for response in call:
                    if not state.is_started:
                        state.rate_limits = rate_limits(await call.initial_metadata())
                    event = state.receive(response)
                    if event is not None:
                        attempts.progressed()
                        yield event
            except grpc.aio.AioRpcError as error:
                failure = from_status(error, state.request_id)
            except asyncio.CancelledError:
                failure = _closed_underneath(state.request_id)
            finally:
                call.cancel()
            if not state.is_complete:
                await self._pause(attempts.delay_after(failure, state.num_tokens))

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[MessageLike] | None = None,
        add_special_tokens: bool | None = None,
        with_offsets: bool = False,
    ) -> Tokens:
        """The token ids that a generation would begin with."""
        request = tokenize_request(text, messages, add_special_tokens, with_offsets)
        return Tokens.from_wire(await self._call(lambda stub: stub.Tokenize, request))

    async def tokenize_prompt(self, request: Request, *, add_special_tokens: bool | None = None) -> Tokens:
        """The token ids of a request's prompt, a text or a conversation, with all that its template takes."""
        return Tokens.from_wire(await self._call(lambda stub: stub.Tokenize, prompt_tokenize_request(request, add_special_tokens)))

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return (await self._call(lambda stub: stub.Detokenize, detokenize_request(token_ids, skip_special_tokens))).text

    async def models(self) -> tuple[Model, ...]:
        """The served models."""
        response = await self._call(lambda stub: stub.ListModels, pb.ListModelsRequest())
        return tuple(Model.from_wire(model) for model in response.models)

    async def server(self) -> Server:
        """The server's version, limits and number of workers."""
        return Server.from_wire(await self._call(lambda stub: stub.GetServer, pb.GetServerRequest()))

    async def abort(self, request_id: str) -> bool:
        """End a live request; returns whether it was live."""
        return (await self._call(lambda stub: stub.Abort, pb.AbortRequest(request_id=request_id))).was_live

    async def is_serving(self) -> bool:
        """Whether the server takes requests: it has a worker that answers, and does not drain."""
        check = health_pb2.HealthCheckRequest()
        response = await self._try(lambda target, timeout: health_pb2_grpc.HealthStub(self._channel(target)).Check(check, timeout=timeout))
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    async def _call(
        self, method: Callable[["InferenceServiceAsyncStub"], grpc.aio.UnaryUnaryMultiCallable[Sent, Got]], message: Sent
    ) -> Got:
        return await self._try(lambda target, timeout: method(self._stub(target))(message, timeout=timeout, metadata=self._metadata))

    async def _try(self, call: Callable[[str, float | None], grpc.aio.UnaryUnaryCall[Sent, Got]]) -> Got:
        attempts = Attempts(self._targets, self._limits)
        while True:
            try:
                response = await call(attempts.target, attempts.remaining_seconds())
            except grpc.aio.AioRpcError as error:
                await self._pause(attempts.delay_after(from_status(error)))
            except asyncio.CancelledError:
                raise _closed_underneath() from None
            else:
                attempts.progressed()
                return response

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)

    def _stub(self, target: str) -> "InferenceServiceAsyncStub":
        return InferenceServiceStub(self._channel(target))

    def _channel(self, target: str) -> grpc.aio.Channel:
        if self._closed.is_set():
            raise ClientClosed()
        if target not in self._channels:
            self._channels[target] = open_async_channel(target, self._credentials)
        return self._channels[target]


def _closed_underneath(request_id: str = "") -> ServingError:
    """The error of a call whose channel was closed under it: gRPC reports that as a cancelled task. CancelledError if it is one."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise asyncio.CancelledError
    return ClientClosed(request_id)
