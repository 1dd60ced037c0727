"""The life of a control plane: bind, read the model, serve, drain, stop."""

import asyncio
import gc
import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector

from control_plane.edge.access.access import Access, PeerAccess
from control_plane.edge.client_server import METHODS, AdminServer, ClientServer
from control_plane.edge.config import Config, ServedAddress, front_end_exposures, scheduler_exposures
from control_plane.edge.engine_thread import EngineThread, EngineThreadOptions
from control_plane.edge.metrics.collector import ServerCollector
from control_plane.edge.metrics.families import PREFIX
from control_plane.edge.metrics.recorders import CallRecorder, EngineRecorder, LinkRecorder
from control_plane.edge.model_directory import ServedModel, read_model
from control_plane.edge.service.admin_service import AdminService
from control_plane.edge.service.admission.admission import Admission
from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.edge.service.admission.prompt import PromptEncoder
from control_plane.edge.service.admission.resume import Replayer
from control_plane.edge.service.errors import SHUTTING_DOWN
from control_plane.edge.service.inference_service import InferenceService, ServerDescription
from control_plane.edge.service.overload import LoadShedder, LoopLag
from control_plane.edge.service.request_streams import RequestStreams
from control_plane.edge.text.constraint.compiler import ConstraintCompiler
from control_plane.edge.worker_link.options import LinkOptions
from pypto_serving.process.credentials.files import ReloadedFiles
from pypto_serving.process.credentials.metrics import CredentialCollector
from pypto_serving.process.metrics_endpoint import serve_metrics
from pypto_serving.process.stop_requests import StopRequests
from pypto_serving.process.version import version

_log = logging.getLogger(__name__)

_IDLE_POLL_SECONDS = 0.02
_FIRST_POLL_SECONDS = 0.1  # for calls that have arrived, of which gRPC would drop those that no handler has
_LAST_WRITES_SECONDS = 0.5  # for calls that have ended to hand their status over


class ControlPlane:
    """Owns all parts of the process; lives on the clients' event loop."""

    def __init__(self, config: Config, stop: StopRequests) -> None:
        self._config = config
        self._stop = stop
        self._instance_id = secrets.token_hex(8)
        self._calls = CallRecorder(METHODS)
        self._engine_metrics = EngineRecorder()
        self._link_metrics = LinkRecorder()
        front_end = config.front_end
        self._lag = LoopLag(self._calls, front_end.streams.max_delta_delay_seconds)
        self._context_limit = ContextLimit(front_end.worker_grace_seconds, front_end.engine.max_queued_requests)
        self.ports: dict[str, int] = {}  # by what they are for; empty until everything is served

    async def run(self) -> int:
        """Serve until a stop is requested; returns the exit code. Raises StartUpError when it cannot start."""
        started_at = time.monotonic()
        config, metrics, announce = self._config.front_end, self._config.scheduler.metrics, self._config.scheduler.announce
        async with AsyncExitStack() as cleanup:
            access, to_workers = Access(config.access), PeerAccess("worker_tls", self._config.scheduler.worker_tls)
            server = ClientServer(config.address.host, config.address.port, self._calls, access.for_clients())
            cleanup.push_async_callback(server.stop, 0.0)
            given = config.model
            model = read_model(given.directory, given.served_name, given.default_sampling, given.chat_template)
            compiler = ConstraintCompiler(model.tokenizer, model.vocab_size, model.end_token_ids)
            engine = EngineThread(self._engine_options(model, to_workers), compiler, self._engine_metrics, self._link_metrics)
            live = RequestStreams(asyncio.get_running_loop(), engine, self._lag, config.streams)
            endpoint = serve_metrics(self._metrics(engine, live, [*access.watched, *to_workers.watched]), metrics.host, metrics.port)
            cleanup.callback(endpoint.close)
            cleanup.push_async_callback(engine.stop)
            ports = {"address": server.port, "metrics": endpoint.port, "announce": await engine.start(live)}
            encoder = PromptEncoder(model)
            cleanup.callback(encoder.close)
            replayer = Replayer()
            cleanup.callback(replayer.close)
            load = LoadShedder(config.engine, lambda: engine.snapshot, self._lag)
            admission = Admission(model, encoder, compiler, replayer, self._context_limit, config.access.priorities)
            service = InferenceService(model, encoder, load, admission, live, self._description(engine))
            await server.start(service, self._context_limit, engine, self._lag)
            if config.admin:
                admin = AdminService(engine, live, self._context_limit, self._stop.drain.set)
                ports["admin"] = await self._start_admin(config.admin, admin, access, cleanup)
            gc.collect()
            gc.freeze()
            seconds = round(time.monotonic() - started_at, 2)
            places = {"metrics": metrics, "announce": announce, "admin": config.admin}
            addresses = {name: f"{(places.get(name) or config.address).host}:{port}" for name, port in ports.items()}
            for exposure in (*front_end_exposures(config), *scheduler_exposures(self._config.scheduler)):
                _log.warning(exposure)
            _log.info("serving", extra={**addresses, "model": model.name, "seconds": seconds})
            self.ports = ports
            preparing = asyncio.create_task(admission.prepare())
            cleanup.callback(preparing.cancel)
            return await self._serve(server, engine, live)

    async def _start_admin(self, address: ServedAddress, service: AdminService, access: Access, cleanup: AsyncExitStack) -> int:
        admin = AdminServer(address.host, address.port, self._calls, access.for_operators())
        cleanup.push_async_callback(admin.stop)
        await admin.start(service)
        return admin.port

    async def _serve(self, server: ClientServer, engine: EngineThread, live: RequestStreams) -> int:
        stop_requested = asyncio.create_task(self._stop.drain.wait())
        ends: set[asyncio.Future[Any]] = {stop_requested, engine.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stop_requested.cancel()
        server.drain()
        self._context_limit.close()
        live.close()
        await self._drain(engine, live)
        await server.stop(0.0 if self._stop.at_once.is_set() else _LAST_WRITES_SECONDS)
        _log.info("stopped")
        return 1 if engine.failed.done() else 0

    async def _drain(self, engine: EngineThread, live: RequestStreams) -> None:
        """Let running requests finish, while there is an engine and time, and nobody asks to stop at once."""
        _log.info("draining", extra={"requests": len(live), "drain_seconds": self._config.front_end.drain_seconds})
        engine.drain()
        deadline = time.monotonic() + self._config.front_end.drain_seconds
        if not self._stop.at_once.is_set():
            await asyncio.sleep(_FIRST_POLL_SECONDS)
        while len(live) and not (engine.failed.done() or self._stop.at_once.is_set() or time.monotonic() >= deadline):
            await asyncio.sleep(_IDLE_POLL_SECONDS)
        if len(live):
            _log.warning("requests cut off", extra={"requests": len(live)})
            live.fail_all("the engine failed" if engine.failed.done() else SHUTTING_DOWN)

    def _engine_options(self, model: ServedModel, to_workers: PeerAccess) -> EngineThreadOptions:
        config = self._config.scheduler
        tls = to_workers.to_dial()
        return EngineThreadOptions(
            scheduler=config.scheduler,
            engine=config.engine,
            links=LinkOptions(self._instance_id, model.fingerprint, tls, takeover=config.takeover, min_hang_seconds=config.hang_seconds),
            workers=config.workers,
            host=config.announce.host,
            announce_port=config.announce.port,
            announce_credentials=to_workers.credentials(),
        )

    def _metrics(self, engine: EngineThread, live: RequestStreams, watched: Sequence[ReloadedFiles[Any]]) -> CollectorRegistry:
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        registry.register(CredentialCollector(PREFIX, watched))
        recorders = (self._engine_metrics, self._link_metrics, self._calls)
        num_held_back, num_unwritten = lambda: self._context_limit.num_waiting, lambda: live.num_unwritten_bytes
        registry.register(ServerCollector(recorders, engine.take_snapshot, num_held_back, num_unwritten))
        return registry

    def _description(self, engine: EngineThread) -> ServerDescription:
        return ServerDescription(
            version=version(),
            instance_id=self._instance_id,
            max_queued_requests=self._config.front_end.engine.max_queued_requests,
            num_workers=lambda: len(engine.snapshot.workers),
            max_model_len=lambda: self._context_limit.tokens,
        )


async def run_control_plane(config: Config) -> int:
    """Serve until a signal comes; returns the exit code. Raises StartUpError when the control plane cannot start."""
    stop = StopRequests()
    stop.listen()
    return await ControlPlane(config, stop).run()
