"""Turns errors into gRPC statuses, in one place."""

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from control_plane.edge.service.errors import InternalError, InvalidArgument, RequestError

_log = logging.getLogger(__name__)

#: Details travel percent-encoded in a header, whose size is limited.
_MAX_DETAIL_BYTES = 2000

#: A client's own clock ends its call a little before ours would.
_DEADLINE_TOLERANCE_SECONDS = 0.05

_Context = grpc.aio.ServicerContext[Any, Any]
_Handler = Callable[[Any, _Context], Awaitable[Any]]
#: Takes the name of a method and the status of one call of it.
CallObserver = Callable[[str, grpc.StatusCode], None]


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Converts errors of our own services, and reports the status of every call. Handlers are coroutines, streaming ones too.

    Requests are parsed here: gRPC would answer what it can not parse with UNKNOWN, and log a traceback.
    """

    def __init__(self, observe_call: CallObserver) -> None:
        self._observe_call = observe_call

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Wrap the handler."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/pypto_serving."):
            return handler
        method = handler_call_details.method.rpartition("/")[2]
        make = grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        behaviour: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary
        parse: Any = handler.request_deserializer
        wrapped: Any = self._wrap(method, parse, behaviour)
        return make(wrapped, response_serializer=handler.response_serializer)

    def _wrap(self, method: str, parse: Callable[[bytes], Any], behaviour: _Handler) -> _Handler:
        async def call(serialized: bytes, context: _Context) -> Any:
            request = None
            try:
                request = _parsed(method, parse, serialized)
                response = await behaviour(request, context)
            except asyncio.CancelledError:
                self._observe_call(method, _cancellation(context))
                raise
            except RequestError as error:
                self._observe_call(method, error.code)
                await _refuse(context, error)
            except Exception:
                request_id = _request_id(request)
                _log.exception("call failed", extra={"method": method, "request_id": request_id})
                self._observe_call(method, InternalError.code)
                await _refuse(context, InternalError(f"internal error in {method}, request {request_id}; the server's log says more"))
            self._observe_call(method, grpc.StatusCode.OK)
            return response

        return call


def _parsed(method: str, parse: Callable[[bytes], Any], serialized: bytes) -> Any:
    try:
        return parse(serialized)
    except DecodeError as error:
        _log.debug("request not parsed", extra={"method": method, "error": str(error)})
        raise InvalidArgument(f"the request is not a valid {method}Request") from None


def _request_id(request: Any) -> str:
    """The id that a client gave its request, or a new one to find the failure in the log by."""
    return getattr(getattr(request, "spec", None), "request_id", "") or uuid.uuid4().hex


def _cancellation(context: _Context) -> grpc.StatusCode:
    """gRPC cancels a handler when its client went away, and when the deadline has passed."""
    remaining = context.time_remaining()
    expired = remaining is not None and remaining < _DEADLINE_TOLERANCE_SECONDS
    return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED


async def _refuse(context: _Context, error: RequestError) -> NoReturn:
    details = str(error).encode()[:_MAX_DETAIL_BYTES].decode("utf-8", "ignore")
    metadata: tuple[tuple[str, str], ...] = ()
    if error.retry_after_seconds is not None:
        metadata = (("retry-after-ms", str(math.ceil(error.retry_after_seconds * 1000))),)
    await context.abort(error.code, details, metadata)
