"""Asks callers for a key."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from control_plane.edge.access.callers import CALLER
from control_plane.edge.access.keys import ReloadedKeys
from pypto_serving.process.health import HEALTH
from pypto_serving.process.reflection import REFLECTION_SERVICES

#: Open to everybody, if they are served at all: what probes and tools need.
_OPEN_SERVICES = tuple(f"/{service}/" for service in (HEALTH, *REFLECTION_SERVICES))

_REFUSAL = "this server asks for a key that it knows, as the header `authorization: Bearer KEY`"


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Ends calls that show no valid key with UNAUTHENTICATED, all with the same words, before their message is read.

    It stands before all other interceptors; calls of our own services that it ends are reported to `observe_call`.
    """

    def __init__(self, keys: ReloadedKeys, observe_call: Callable[[str, grpc.StatusCode], None]) -> None:
        self._keys = keys
        self._observe_call = observe_call

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Let the call pass, or put a refusal in its place."""
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if path.startswith(_OPEN_SERVICES):
            return handler
        if caller := self._keys.current().caller(_key(handler_call_details.invocation_metadata)):
            CALLER.set(caller)  # the task that we are in serves this call and no other
            return handler
        # Methods that do not exist are not counted: their names are the caller's.
        is_ours = handler is not None and path.startswith("/pypto_serving.")
        return self._refusing(path.rpartition("/")[2] if is_ours else None)

    def _refusing(self, counted_method: str | None) -> "grpc.RpcMethodHandler[Any, Any]":
        async def refuse(messages: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
            if counted_method is not None:
                self._observe_call(counted_method, grpc.StatusCode.UNAUTHENTICATED)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)

        # Whatever the method takes and gives: a handler of streams begins without waiting for a message.
        refusing: Any = refuse
        return grpc.stream_stream_rpc_method_handler(refusing)


def _key(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """The key that a call shows; empty, which no key is, without exactly one."""
    values = [value for name, value in metadata if name == "authorization"]
    if len(values) != 1:
        return b""
    value = values[0] if isinstance(values[0], bytes) else values[0].encode("utf-8", "surrogatepass")
    scheme, _, key = value.partition(b" ")
    return key if scheme.lower() == b"bearer" else b""
