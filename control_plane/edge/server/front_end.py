"""What belongs to clients, around an engine in this process or in another one: bind, read the model, serve, drain."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from control_plane.edge.access.access import Access
from control_plane.edge.active_clock import ActiveClock
from control_plane.edge.client_server import METHODS, AdminServer, ClientServer
from control_plane.edge.config import FrontEndConfig
from control_plane.edge.metrics.collector import FrontEndCollector
from control_plane.edge.metrics.counts import CallCounts
from control_plane.edge.model_directory import ServedModel, read_model
from control_plane.edge.service.admin_service import FrontEndCounts
from control_plane.edge.service.admission.admission import Admission
from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.edge.service.admission.prompt import PromptEncoder
from control_plane.edge.service.admission.resume import Replayer
from control_plane.edge.service.engine_port import EnginePort
from control_plane.edge.service.errors import SHUTTING_DOWN
from control_plane.edge.service.inference_service import InferenceService, ServerDescription
from control_plane.edge.service.overload import LoadShedder, LoopLag
from control_plane.edge.service.request_log import RequestLog
from control_plane.edge.service.request_streams import RequestStreams
from control_plane.edge.text.constraint.compiler import ConstraintCompiler
from control_plane.engine.snapshot import RefusedWorker
from pypto_serving.admin.v1 import admin_pb2_grpc
from pypto_serving.process.probes import Pulse
from pypto_serving.process.stop_requests import StopRequests
from pypto_serving.process.version import version

_log = logging.getLogger(__name__)

_IDLE_POLL_SECONDS = 0.02
_FIRST_POLL_SECONDS = 0.1  # for calls that have arrived, of which gRPC would drop those that no handler has
_LAST_WRITES_SECONDS = 0.5  # for calls that have ended to hand their status over


class Engine(EnginePort, Protocol):
    """The engine, and what becomes of it."""

    @property
    def failed(self) -> "asyncio.Future[BaseException]":
        """Done when it, or the way to it, has failed for good."""

    async def refused_workers(self) -> Sequence[RefusedWorker]:
        """Workers that it was told of and that will not work for it."""


class FrontEndAssembly:
    """Owns the parts; lives on the clients' event loop."""

    def __init__(self, config: FrontEndConfig, cleanup: AsyncExitStack) -> None:
        """Bind the clients' port and read the model; raises StartUpError.

        A port of ours alone comes first, so that a taken one is known at once. One that is shared gets its part of the connections from
        then on, which others could serve meanwhile.
        """
        self._config = config
        self._cleanup = cleanup
        self._calls = CallCounts(METHODS)
        self._requests = RequestLog(config.logged_requests, self._calls.observe_call)
        self._lag = LoopLag(self._calls, config.streams.max_delta_delay_seconds)
        self.live: RequestStreams
        self.pulse = Pulse()
        self.access = Access(config.access)
        self.clock = ActiveClock()
        self.context_limit = ContextLimit(config.worker_grace_seconds, config.engine.max_queued_requests, self.clock)
        model = self._read_model() if config.shares_port else None
        self._server = ClientServer(
            config.address.host, config.address.port, self._requests.observe_call, self.access.for_clients(), config.shares_port
        )
        cleanup.push_async_callback(self._server.stop, 0.0)
        self.model = model or self._read_model()
        self._requests.model = self.model.name
        self.compiler = ConstraintCompiler(self.model.tokenizer, self.model.vocab_size, self.model.end_token_ids)

    def _read_model(self) -> ServedModel:
        given = self._config.model
        return read_model(given.directory, given.served_name, given.default_sampling, given.chat_template)

    @property
    def trouble(self) -> str:
        """Why a request would not succeed now; empty if it would. May be asked on any thread."""
        return self._server.trouble

    @property
    def port(self) -> int:
        """The clients' port."""
        return self._server.port

    def attach(self, engine: EnginePort) -> RequestStreams:
        """What takes the output of an engine in."""
        self.live = RequestStreams(asyncio.get_running_loop(), engine, self._lag, self._config.streams)
        return self.live

    def counts(self) -> FrontEndCounts:
        """What operators hear of it."""
        return FrontEndCounts(len(self.live), self.context_limit.num_waiting, self.live.is_closed)

    def register_metrics(self, registry: CollectorRegistry) -> None:
        """Show what is counted here."""
        registry.register(FrontEndCollector(self._calls, lambda: self.live.num_unwritten_bytes))

    async def serve(self, engine: Engine, instance_id: str) -> None:
        """Serve clients, NOT_SERVING first."""
        config, cleanup = self._config, self._cleanup
        encoder, replayer = PromptEncoder(self.model), Replayer()
        cleanup.callback(encoder.close)
        cleanup.callback(replayer.close)
        load = LoadShedder(config.engine, lambda: engine.snapshot, self._lag)
        admission = Admission(self.model, encoder, self.compiler, replayer, self.context_limit, config.access.priorities)
        description = ServerDescription(
            version=version(),
            instance_id=instance_id,
            max_queued_requests=config.engine.max_queued_requests,
            num_workers=lambda: len(engine.snapshot.workers),
            max_model_len=lambda: self.context_limit.tokens,
            refused_workers=engine.refused_workers,
        )
        service = InferenceService(self.model, encoder, load, admission, self.live, description)
        await self._server.start(service, self.context_limit, engine, self._lag)
        for task in (admission.prepare(), self.pulse.beat(), self.clock.run()):
            cleanup.callback(asyncio.create_task(task).cancel)

    async def serve_admin(self, service: admin_pb2_grpc.AdminServiceServicer) -> int:
        """Serve operators; returns the port."""
        address = self._config.admin
        assert address is not None
        admin = AdminServer(address.host, address.port, self._requests.observe_call, self.access.for_operators())
        self._cleanup.push_async_callback(admin.stop)
        await admin.start(service)
        return admin.port

    async def run(self, engine: Engine, stop: StopRequests) -> int:
        """Wait for a stop or a failure, and drain; returns the exit code."""
        stop_requested = asyncio.create_task(stop.drain.wait())
        ends: set[asyncio.Future[Any]] = {stop_requested, engine.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stop_requested.cancel()
        self._server.drain()
        self.context_limit.close()
        self.live.close()
        await self._drain(engine, stop)
        await self._server.stop(0.0 if stop.at_once.is_set() else _LAST_WRITES_SECONDS)
        return 1 if engine.failed.done() else 0

    async def _drain(self, engine: Engine, stop: StopRequests) -> None:
        """Let running requests finish, while there is an engine and time, and nobody asks to stop at once."""
        live, seconds = self.live, self._config.drain_seconds
        _log.info("draining", extra={"requests": len(live), "drain_seconds": seconds})
        engine.drain()
        deadline = time.monotonic() + seconds
        if not stop.at_once.is_set():
            await asyncio.sleep(_FIRST_POLL_SECONDS)
        while len(live) and not (engine.failed.done() or stop.at_once.is_set() or time.monotonic() >= deadline):
            await asyncio.sleep(_IDLE_POLL_SECONDS)
        if len(live):
            _log.warning("requests cut off", extra={"requests": len(live)})
            live.fail_all("the engine failed" if engine.failed.done() else SHUTTING_DOWN)
