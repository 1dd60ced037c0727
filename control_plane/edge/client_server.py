"""The gRPC servers of a control plane: one for clients, and on request one for operators."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from control_plane.edge.access.access import ServerAccess
from control_plane.edge.access.keys import KeyInterceptor
from control_plane.edge.call_acceptors import CallAcceptors
from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.edge.service.engine_port import EngineView
from control_plane.edge.service.error_interceptor import CallObserver, ErrorInterceptor
from control_plane.edge.service.inference_service import InferenceService
from control_plane.edge.service.overload import LoopLag
from control_plane.edge.service.readiness import Readiness
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2, inference_pb2_grpc
from pypto_serving.process.health import HEALTH, HealthService
from pypto_serving.process.listening import EXCLUSIVE_PORT, SHARED_PORT, bind
from pypto_serving.process.reflection import enable_reflection

#: Enough for a prompt of a million tokens, as ids or as text. Larger messages are refused by gRPC, before they are parsed.
MAX_REQUEST_BYTES = 16 * 1024 * 1024

#: Calls that have arrived and are not begun.
MAX_PENDING_CALLS = 100_000

SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    # gRPC drops calls that nobody has looked at, with a CANCELLED of its own, from 1,000 on by chance: a burst is ours to refuse.
    ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
    ("grpc.server_max_unrequested_time_in_server", 300),  # seconds
    # Clients may ping through a long prefill, and between calls. The key with "recv" in its name does nothing.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    # A client that vanished without a word is noticed, and its requests are aborted.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
)


_INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
#: Methods whose calls are counted.
METHODS = tuple(method.name for service in (_INFERENCE, _ADMIN) for method in service.methods)
_OPEN = ServerAccess()


class ClientServer:
    """InferenceService, health and reflection. Ports are bound first, so that a taken one is known before a model is read."""

    def __init__(self, host: str, port: int, observe_call: CallObserver, access: ServerAccess = _OPEN, shares_port: bool = False) -> None:
        """`shares_port`: with other processes, among which the kernel distributes connections."""
        interceptors = _interceptors(observe_call, access)
        self._server = _server(interceptors, SHARED_PORT if shares_port else EXCLUSIVE_PORT)
        self._acceptors = CallAcceptors(self._server, interceptors)
        self.port = bind(self._server, host, port, access.credentials)
        self._access = access
        self._health = HealthService()
        self._readiness: Readiness | None = None
        self._watching: list[asyncio.Task[None]] = []

    async def start(self, service: InferenceService, context_limit: ContextLimit, engine: EngineView, lag: LoopLag) -> None:
        """Serve, NOT_SERVING first."""
        readiness = self._readiness = Readiness(self._health, (_INFERENCE.full_name,), context_limit.set)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(service, self._acceptors)  # type: ignore[arg-type]  # as the server
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self._access.reflection:
            enable_reflection(self._server, _INFERENCE.full_name, HEALTH)
        await self._server.start()
        self._acceptors.start()
        self._watching = [asyncio.create_task(readiness.keep_updated(engine)), asyncio.create_task(lag.watch())]

    @property
    def trouble(self) -> str:
        """Why a request would not succeed now; empty if it would. May be asked on any thread."""
        return self._readiness.trouble if self._readiness else "starting"

    def drain(self) -> None:
        """NOT_SERVING for good; calls under way go on."""
        if self._readiness:
            self._readiness.drain()

    async def stop(self, grace_seconds: float) -> None:
        """Stop serving; calls get `grace_seconds` to end."""
        self.drain()
        await self._server.stop(grace_seconds)
        for task in self._watching:
            task.cancel()


class AdminServer:
    """AdminService, on a port of its own."""

    def __init__(self, host: str, port: int, observe_call: CallObserver, access: ServerAccess = _OPEN) -> None:
        self._server = _server(_interceptors(observe_call, access), EXCLUSIVE_PORT)
        self.port = bind(self._server, host, port, access.credentials)
        self._access = access

    async def start(self, service: admin_pb2_grpc.AdminServiceServicer) -> None:
        """Serve."""
        admin_pb2_grpc.add_AdminServiceServicer_to_server(service, self._server)
        if self._access.reflection:
            enable_reflection(self._server, _ADMIN.full_name)
        await self._server.start()

    async def stop(self) -> None:
        """Stop serving."""
        await self._server.stop(None)


def _interceptors(observe_call: CallObserver, access: ServerAccess) -> "Sequence[grpc.aio.ServerInterceptor[Any, Any]]":
    errors = ErrorInterceptor(observe_call)
    return [errors] if access.keys is None else [KeyInterceptor(access.keys, observe_call), errors]


def _server(interceptors: "Sequence[grpc.aio.ServerInterceptor[Any, Any]]", port_option: tuple[str, int]) -> grpc.aio.Server:
    return grpc.aio.server(interceptors=interceptors, options=(port_option, *SERVER_OPTIONS))
