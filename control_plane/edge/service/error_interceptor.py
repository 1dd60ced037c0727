"""Turns errors into gRPC statuses, in one place."""

import asyncio
import logging
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from control_plane.edge.access.callers import Metadata
from control_plane.edge.service.errors import REQUEST_ID, Deadline, InternalError, InvalidArgument, RequestError

_log = logging.getLogger(__name__)

#: Details travel percent-encoded in a header, whose size is limited.
_MAX_DETAIL_BYTES = 2000

#: A status goes out behind the messages before it, which a client that does not read never takes.
_STATUS_SECONDS = 5.0

_OURS = "/pypto_serving."

#: What ends a handler from outside: it is not a failure of the call. Everything else is, a library's panic too, which is no Exception.
_NO_FAILURES = (grpc.aio.AbortError, GeneratorExit, KeyboardInterrupt, SystemExit)

_Context = grpc.aio.ServicerContext[Any, Any]
_Handler = Callable[[Any, _Context], Any]
_Parser = Callable[[bytes], Any]
#: Takes the name of a method, and the status and the context of one call of it, and returns metadata that a failure comes with; called in
#: the task that serves the call.
CallObserver = Callable[[str, grpc.StatusCode, _Context], Metadata]


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Converts errors of every service, and reports the status of each call of ours.

    Requests are read and parsed here: gRPC would answer what it cannot parse with UNKNOWN, and log a traceback, and would never answer a
    call that ends before its one request has come. Handlers of one request are coroutines, those of a stream of requests async generators.
    """

    def __init__(self, observe_call: CallObserver, services: str = "/") -> None:
        """`services`: what the paths of methods begin with whose errors are converted."""
        self._observe_call = observe_call
        self._services = services
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}  # by method

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Wrap the handler, once."""
        path = handler_call_details.method
        if path in self._wrapped:
            return self._wrapped[path]
        handler = await continuation(handler_call_details)
        if handler is None or not path.startswith(self._services):
            return handler
        observe = self._observe_call if path.startswith(_OURS) else lambda method, code, context: ()
        call = _Call(path.rpartition("/")[2], handler.request_deserializer or bytes, observe)
        wrapped = self._wrapped[path] = _wrapped(handler, call)
        return wrapped


class _Call:
    """Runs handlers of one method."""

    def __init__(self, method: str, parse: _Parser, observe: CallObserver) -> None:
        self._method = method
        self._parse = parse
        self._observe = observe

    def with_one_request(self, behaviour: _Handler) -> _Handler:
        """The handler of a method that takes one request."""

        async def call(_: AsyncIterator[bytes], context: _Context) -> Any:
            deadline = Deadline(context.time_remaining())
            try:
                response = await behaviour(self._parsed(await context.read()), context)
            except BaseException as error:
                await self._end(error, deadline, context)
            self._observe(self._method, grpc.StatusCode.OK, context)
            return response

        return call

    def with_many_requests(self, behaviour: _Handler) -> _Handler:
        """The handler of a method that takes a stream of requests and answers with another."""

        async def call(serialized: AsyncIterator[bytes], context: _Context) -> AsyncIterator[Any]:
            deadline = Deadline(context.time_remaining())
            try:
                async for response in behaviour((self._parsed(message) async for message in serialized), context):
                    yield response
            except GeneratorExit:
                raise
            except BaseException as error:
                await self._end(error, deadline, context)
            self._observe(self._method, grpc.StatusCode.OK, context)

        return call

    async def _end(self, error: BaseException, deadline: Deadline, context: _Context) -> NoReturn:
        """End a call that failed."""
        if isinstance(error, _NO_FAILURES):
            raise error
        if isinstance(error, asyncio.CancelledError | grpc.aio.BaseError):  # gRPC: there is no client any more
            self._observe(self._method, grpc.StatusCode.DEADLINE_EXCEEDED if deadline.has_passed else grpc.StatusCode.CANCELLED, context)
            raise asyncio.CancelledError from None
        code = error.code if isinstance(error, RequestError) else InternalError.code
        about_call = self._observe(self._method, code, context)
        if not isinstance(error, RequestError):
            about_call = about_call or ((REQUEST_ID, uuid.uuid4().hex),)  # a call that is no request is to be found in the log, too
            request_id = dict(about_call)[REQUEST_ID]
            _log.error("call failed", exc_info=error, extra={"method": self._method, "request_id": request_id})
            error = InternalError(f"internal error in {self._method}, request {request_id}; the server's log says more")
        await _refuse(context, error, about_call)

    def _parsed(self, serialized: Any) -> Any:
        if not isinstance(serialized, bytes):  # the end of the call
            raise InvalidArgument(f"the call ends without a {self._method}Request")
        try:
            return self._parse(serialized)
        except DecodeError as error:
            _log.debug("request not parsed", extra={"method": self._method, "error": str(error)})
            raise InvalidArgument(f"the request is not a valid {self._method}Request") from None


def _wrapped(handler: "grpc.RpcMethodHandler[Any, Any]", call: _Call) -> "grpc.RpcMethodHandler[Any, Any]":
    behaviours: Any = handler
    serialize = handler.response_serializer
    if handler.request_streaming:
        assert handler.response_streaming, "no service takes many requests for one answer"
        return grpc.stream_stream_rpc_method_handler(call.with_many_requests(behaviours.stream_stream), response_serializer=serialize)
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(call.with_one_request(behaviours.unary_stream), response_serializer=serialize)
    # A large answer comes in its serialized form: that was made on a thread.
    serializer = serialize and (lambda message: message if isinstance(message, bytes) else serialize(message))
    return grpc.stream_unary_rpc_method_handler(call.with_one_request(behaviours.unary_unary), response_serializer=serializer)


async def _refuse(context: _Context, error: RequestError, about_call: Metadata) -> NoReturn:
    details = str(error).encode()[:_MAX_DETAIL_BYTES].decode("utf-8", "ignore")
    metadata = error.metadata + about_call
    if error.retry_after_seconds is not None:
        retry_ms = str(math.ceil(error.retry_after_seconds * 1000))
        metadata += (("retry-after-ms", retry_ms), ("grpc-retry-pushback-ms", retry_ms))  # for people, and for gRPC's own retries
    try:
        async with asyncio.timeout(_STATUS_SECONDS):
            await context.abort(error.code, details, metadata)
    except TimeoutError:
        raise asyncio.CancelledError from None  # gRPC keeps the status for a client that reads on, or drops it with the connection
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # the client has left
