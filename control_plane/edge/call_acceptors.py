"""Takes new calls up faster than grpc.aio does by itself."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc._cython import cygrpc  # type: ignore[attr-defined]

_log = logging.getLogger(__name__)

#: Versions of gRPC whose inside is known to be as it is used here; there is no public way.
_KNOWN_VERSIONS = ("1.85.",)

#: Calls of a method that may come in together.
_NUM_ACCEPTORS = 16


class CallAcceptors:
    """Asks gRPC for several calls of each method at a time; stands for the server where services are added.

    grpc.aio asks for one, and for the next one when that has come through its queue of events, behind those of all writes: calls would
    wait for each other. With another version of gRPC this does nothing.
    """

    def __init__(self, server: grpc.aio.Server, interceptors: "Sequence[grpc.aio.ServerInterceptor[Any, Any]]") -> None:
        """`interceptors`: the server's."""
        self._server = server
        self._core: Any = server._server  # type: ignore[attr-defined]
        self._interceptors = tuple(interceptors)
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._acceptors: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[None]] = set()  # the loop alone would forget them

    @property
    def num_waiting(self) -> int:
        """Calls that may come in together, beside gRPC's own one of each method."""
        return len(self._acceptors)

    def add_generic_rpc_handlers(self, handlers: "Iterable[grpc.GenericRpcHandler[Any, Any]]") -> None:
        """As a server."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: "dict[str, grpc.RpcMethodHandler[Any, Any]]") -> None:
        """As a server."""
        self._server.add_registered_method_handlers(service, handlers)  # type: ignore[attr-defined]
        self._handlers |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def start(self, version: str = grpc.__version__) -> None:
        """Begin, once the server has been started. It ends by itself when the server stops."""
        if not version.startswith(_KNOWN_VERSIONS):
            _log.warning("new calls are taken up one at a time: the inside of this gRPC is not known", extra={"grpc_version": version})
            return
        resolver = cygrpc._MethodResolver([], self._handlers)
        for method in self._handlers:
            for _ in range(_NUM_ACCEPTORS):
                acceptor = asyncio.create_task(self._accept(method, resolver))
                self._acceptors.add(acceptor)
                acceptor.add_done_callback(self._acceptors.discard)

    async def _accept(self, method: str, resolver: Any) -> None:
        """As gRPC's own loop, for one method. It must not be cancelled: gRPC writes into what it has been given."""
        loop, name = asyncio.get_running_loop(), method.encode()
        while self._core.is_running():
            try:
                state = await self._core._make_request_call_future(name)
            except cygrpc._RequestCallError:  # the server stops, or the call has ended already
                continue
            handling = cygrpc._handle_rpc(method, resolver, self._interceptors, state, loop, False)
            call = loop.create_task(cygrpc._schedule_rpc_coro(handling, state, loop, method))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
