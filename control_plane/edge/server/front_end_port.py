"""Where a scheduler process meets its front ends: sessions, operators and health on one port."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from control_plane.edge.config import FrontEndPort
from control_plane.edge.engine_thread import EngineThread
from control_plane.edge.frontend_link.service import SERVER_OPTIONS, SchedulerService, SessionOptions
from control_plane.edge.frontend_link.session import FrontEndView
from control_plane.edge.service.admin_service import AdminService, FrontEndCounts
from control_plane.edge.service.error_interceptor import ErrorInterceptor
from control_plane.edge.service.readiness import Readiness
from control_plane.engine.engine import Engine
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.process.health import HealthService
from pypto_serving.process.listening import bind, bind_socket
from pypto_serving.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

_SERVICE = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
_FAREWELL_SECONDS = 1.0


class StoppedStandingBy(Exception):
    """The scheduler is to end before it served."""


class FrontEndServer:
    """`serve` runs on the engine's event loop; the rest may be called on any thread."""

    def __init__(
        self,
        port: FrontEndPort,
        credentials: grpc.ServerCredentials | None,
        sessions: SessionOptions,
        refusal: Callable[[], str],
        start_drain: Callable[[], None],
    ) -> None:
        """`refusal` says why front ends are refused before it serves; `start_drain` is what operators ask for."""
        self._port = port
        self._credentials = credentials
        self._options = sessions
        self._refusal = refusal
        self._start_drain = start_drain
        self._service: SchedulerService | None = None
        self._readiness: Readiness | None = None
        self._is_draining = False
        self.bound: Future[int] = Future()  # the port; 0: a socket in the file system
        self.may_serve: Future[None] = Future()  # an exception: it never will

    @property
    def front_ends(self) -> Sequence[FrontEndView]:
        """The front ends in session."""
        return self._service.front_ends if self._service else ()

    @property
    def trouble(self) -> str:
        """Why front ends' requests would not succeed now; empty if they would. May be asked on any thread."""
        return self._readiness.trouble if self._service and self._readiness else self._refusal()

    def counts(self) -> FrontEndCounts:
        """What they say of themselves."""
        front_ends = self.front_ends
        num_calls, num_held_back = sum(each.num_calls for each in front_ends), sum(each.num_held_back for each in front_ends)
        all_drain = bool(front_ends) and all(each.is_draining for each in front_ends)
        return FrontEndCounts(num_calls, num_held_back, self._is_draining or all_drain)

    def drain(self) -> None:
        """Let all front ends drain; on the engine's event loop."""
        assert self._service is not None
        self._service.drain()

    @asynccontextmanager
    async def serve(self, thread: EngineThread, engine: Engine) -> AsyncIterator[None]:
        """Serve front ends while the block runs, as soon as this scheduler may; until then they are told why not."""
        service = SchedulerService(
            engine, self._options, self._refusal, profiler=thread.profiler, refused_workers=thread.refused_workers_now
        )
        # Sessions end in their own way; calls of operators are counted where these call, at a front end.
        errors = ErrorInterceptor(lambda method, code, context: (), services=f"/{_ADMIN}/")
        server = grpc.aio.server(interceptors=[errors], options=SERVER_OPTIONS)
        health = HealthService()
        readiness = self._readiness = Readiness(health, (_SERVICE,), lambda _: None)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(service, server)
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(thread, self.counts, self._begin_drain), server)
        self.bound.set_result(self._bind(server))
        await server.start()
        updating = None
        try:
            await asyncio.wrap_future(self.may_serve)
            self._service = service
            service.open()
            updating = asyncio.create_task(readiness.keep_updated(thread))
            yield
        finally:
            if updating:
                updating.cancel()
            readiness.drain()
            service.close()
            await server.stop(_FAREWELL_SECONDS)

    def _begin_drain(self) -> None:
        self._is_draining = True
        self._start_drain()

    def _bind(self, server: grpc.aio.Server) -> int:
        if self._port.socket is None:
            return bind(server, self._port.address.host, self._port.address.port, self._credentials)
        bind_socket(server, self._port.socket)
        return 0
