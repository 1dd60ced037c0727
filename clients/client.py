"""The client for threads."""

import copy
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar, cast

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from clients.connection import DEFAULT_TARGET, Credentials, open_channel
from clients.conversation import MessageLike
from clients.errors import ClientClosed, RpcStatus, ServingError, from_status, rate_limits
from clients.many import DEFAULT_CONCURRENCY, Outcome, answer_many_in_threads, check_concurrency, pause_of_refusal
from clients.reconnection import Attempts, RetryLimits, Targets
from clients.request import Request, detokenize_request, taking_request, tokenize_request
from clients.results import Completion, Event, Model, Server, Tokens
from clients.stream_state import StreamState
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1.inference_pb2_grpc import InferenceServiceStub

Sent = TypeVar("Sent")
Got = TypeVar("Got")

_NO_CREDENTIALS = Credentials()


class Client:
    """Talks to one control plane, or to interchangeable ones (`targets`). Threads may share it.

    A stream that breaks is resumed by itself: the caller sees every token exactly once, only later. `connect_seconds` is how long to try
    until a request has started, `resume_seconds` how long an interruption may last; 0 turns either off. `credentials` are for servers
    with TLS or keys. Every method raises ServingError.
    """

    def __init__(
        self,
        targets: str | Sequence[str] = DEFAULT_TARGET,
        *,
        connect_seconds: float = 5.0,
        resume_seconds: float = 60.0,
        credentials: Credentials = _NO_CREDENTIALS,
    ) -> None:
        self._targets = Targets(targets)
        self._limits = RetryLimits(connect_seconds, resume_seconds)
        self._metadata = credentials.metadata()
        channel_credentials = credentials.channel_credentials()
        self._channels = {target: open_channel(target, channel_credentials) for target in self._targets.addresses}
        self._closed = threading.Event()
        self._calls: set[grpc.Call] = set()  # of streams that run
        self._parts: set[Client] = set()  # that share our channels

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; running streams are cancelled."""
        self._closed.set()
        for part in list(self._parts):
            part._closed.set()
        for channel in self._channels.values():
            channel.close()

    @taking_request(Request)
    def generate(self, request: Request) -> Completion:
        """Generate the whole answer. Takes the fields of `Request`: `client.generate("Once", max_tokens=8)`."""
        return self._answer(request)

    def _answer(self, request: Request, began_at: float | None = None) -> Completion:
        state = StreamState(request)
        for _ in self._events(state, request.timeout, began_at):
            pass
        return state.completion()

    def generate_many(self, requests: Iterable[Request], *, concurrency: int = DEFAULT_CONCURRENCY) -> Generator[Outcome, None, None]:
        """Generate the answers of many requests, `concurrency` at a time, and yield each outcome as it comes.

        A request that fails ends nothing: its outcome has the error. One that is refused because the server's queue is full, or a
        quota of the key is used up, is tried again when the server says, until its timeout has passed; without one for ever. `requests`
        are taken as others end, so that they may be more than fit into memory. Closing the iterator cancels what is in flight.
        """
        check_concurrency(concurrency)
        return self._many(requests, concurrency)

    def _many(self, requests: Iterable[Request], concurrency: int) -> Generator[Outcome, None, None]:
        part = copy.copy(self)
        part._closed, part._calls, part._parts = threading.Event(), set(), set()
        self._parts.add(part)
        try:
            self._refuse_if_closed()
            yield from answer_many_in_threads(part._answer_after_queue, part._stop, requests, concurrency)
        finally:
            self._parts.discard(part)

    def _answer_after_queue(self, request: Request) -> Completion:
        began_at = time.monotonic()
        while True:
            try:
                return self._answer(request, began_at)
            except ServingError as error:
                self._closed.wait(pause_of_refusal(error, request, began_at))

    def _stop(self) -> None:
        """End what runs, but no channel."""
        self._closed.set()
        for call in list(self._calls):
            call.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it bare

    @taking_request(Request)
    def stream(self, request: Request) -> Generator[Event, None, None]:
        """Generate as a stream of events, each with `.text`. Takes the fields of `Request`.

        Closing the iterator (`contextlib.closing`), or dropping it, cancels the request.
        """
        return self.send(request)

    def send(self, request: Request) -> Generator[Event, None, None]:
        """As `stream`, for a request that is built already."""
        return self._events(StreamState(request), request.timeout)

    def _events(self, state: StreamState, timeout: float | None, began_at: float | None = None) -> Generator[Event, None, None]:
        attempts = Attempts(self._targets, self._limits, timeout, began_at=began_at)
        while not state.is_complete:
            with self._closed_meanwhile():
                call = self._stub(attempts.target).GenerateStream(
                    state.next_request(), timeout=attempts.remaining_seconds(), metadata=(*self._metadata, *state.metadata)
                )
            failure = state.cut_off_error()
            self._calls.add(call)
            try:
                self._refuse_if_closed()
                for response in call:
                    if not state.is_started:
                        state.rate_limits = rate_limits(call.initial_metadata())
                    event = state.receive(response)
                    if event is not None:
                        attempts.progressed()
                        yield event
            except grpc.RpcError as error:
                failure = self._error(error, state.request_id)
            finally:
                call.cancel()  # type: ignore[no-untyped-call]  # grpc-stubs leaves it bare
                self._calls.discard(call)
            if not state.is_complete:
                self._closed.wait(attempts.delay_after(failure, state.num_tokens))

    def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[MessageLike] | None = None,
        add_special_tokens: bool | None = None,
        with_offsets: bool = False,
    ) -> Tokens:
        """The token ids that a generation would begin with."""
        request = tokenize_request(text, messages, add_special_tokens, with_offsets)
        return Tokens.from_wire(self._call(lambda stub: stub.Tokenize, request))

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return self._call(lambda stub: stub.Detokenize, detokenize_request(token_ids, skip_special_tokens)).text

    def models(self) -> tuple[Model, ...]:
        """The served models."""
        response = self._call(lambda stub: stub.ListModels, pb.ListModelsRequest())
        return tuple(Model.from_wire(model) for model in response.models)

    def server(self) -> Server:
        """The server's version, limits and number of workers."""
        return Server.from_wire(self._call(lambda stub: stub.GetServer, pb.GetServerRequest()))

    def abort(self, request_id: str) -> bool:
        """End a live request; returns whether it was live."""
        return self._call(lambda stub: stub.Abort, pb.AbortRequest(request_id=request_id)).was_live

    def is_serving(self) -> bool:
        """Whether the server takes requests: it has a worker that answers, and does not drain."""
        check = health_pb2.HealthCheckRequest()
        response = self._try(lambda target, timeout: health_pb2_grpc.HealthStub(self._channel(target)).Check(check, timeout=timeout))
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def _call(self, method: "Callable[[InferenceServiceStub], grpc.UnaryUnaryMultiCallable[Sent, Got]]", message: Sent) -> Got:
        return self._try(lambda target, timeout: method(self._stub(target))(message, timeout=timeout, metadata=self._metadata))

    def _try(self, call: Callable[[str, float | None], Got]) -> Got:
        attempts = Attempts(self._targets, self._limits)
        while True:
            try:
                with self._closed_meanwhile():
                    response = call(attempts.target, attempts.remaining_seconds())
            except grpc.RpcError as error:
                self._closed.wait(attempts.delay_after(self._error(error)))
            else:
                attempts.progressed()
                return response

    def _stub(self, target: str) -> InferenceServiceStub:
        return InferenceServiceStub(self._channel(target))

    def _channel(self, target: str) -> grpc.Channel:
        self._refuse_if_closed()
        return self._channels[target]

    def _refuse_if_closed(self) -> None:
        if self._closed.is_set():
            raise ClientClosed()

    @contextmanager
    def _closed_meanwhile(self) -> Iterator[None]:
        """For the beginning of a call: gRPC raises ValueError when another thread closes the client meanwhile."""
        try:
            yield
        except ValueError:
            if self._closed.is_set():
                raise ClientClosed() from None
            raise

    def _error(self, error: grpc.RpcError, request_id: str = "") -> ServingError:
        return ClientClosed(request_id) if self._closed.is_set() else from_status(cast(RpcStatus, error), request_id)
