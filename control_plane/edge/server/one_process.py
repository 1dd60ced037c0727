"""A control plane of one process: a front end, and an engine on a thread of its own."""

import gc
import logging
import secrets
import time
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from control_plane.edge.access.access import PeerAccess
from control_plane.edge.config import Config, front_end_exposures, scheduler_exposures
from control_plane.edge.engine_thread import EngineThread
from control_plane.edge.metrics.collector import BuildCollector, EngineCollector
from control_plane.edge.metrics.counts import EngineCounts, LinkCounts
from control_plane.edge.metrics.families import PREFIX
from control_plane.edge.metrics.vllm_names import VllmNames
from control_plane.edge.server.engine_options import engine_options, limits
from control_plane.edge.server.front_end import FrontEndAssembly
from control_plane.edge.service.admin_service import AdminService
from pypto_serving.process.address import join_address
from pypto_serving.process.credentials.metrics import CredentialCollector
from pypto_serving.process.export_metrics import ExportCollector
from pypto_serving.process.metrics_endpoint import register_process, serve_metrics
from pypto_serving.process.probes import Probes
from pypto_serving.process.stop_requests import StopRequests

_log = logging.getLogger(__name__)


class ControlPlane:
    """Owns all parts of the process; lives on the clients' event loop."""

    def __init__(self, config: Config, stop: StopRequests) -> None:
        self._config = config
        self._stop = stop
        self._instance_id = secrets.token_hex(8)
        self._engine_metrics = EngineCounts()
        self._link_metrics = LinkCounts()
        self.front_end: FrontEndAssembly
        self.ports: dict[str, int] = {}  # by what they are for; empty until everything is served

    async def run(self) -> int:
        """Serve until a stop is requested; returns the exit code. Raises StartUpError when it cannot start."""
        started_at = time.monotonic()
        config = self._config.scheduler
        async with AsyncExitStack() as cleanup:
            to_workers = PeerAccess("worker_tls", config.worker_tls)
            front_end = self.front_end = FrontEndAssembly(self._config.front_end, cleanup)
            options = engine_options(config, self._instance_id, front_end.model, to_workers)
            engine = EngineThread(options, front_end.compiler, self._engine_metrics, self._link_metrics)
            live = front_end.attach(engine)
            engine.profiler.add_local(live.record)
            loops = {"the clients' event loop": front_end.pulse.seconds_since_turn, "the engine's event loop": engine.seconds_since_turn}
            probes = Probes(loops)
            endpoint = serve_metrics(self._metrics(engine, to_workers), config.metrics.host, config.metrics.port, probes)
            cleanup.callback(endpoint.close)
            cleanup.push_async_callback(engine.stop)
            ports = {"address": front_end.port, "metrics": endpoint.port, "announce": await engine.start(live)}
            await front_end.serve(engine, self._instance_id)
            if self._config.front_end.admin:
                ports["admin"] = await front_end.serve_admin(AdminService(engine, front_end.counts, self._stop.drain.set))
            gc.collect()
            gc.freeze()
            probes.set_started(lambda: front_end.trouble)
            self._tell(ports, time.monotonic() - started_at)
            self.ports = ports
            exit_code = await front_end.run(engine, self._stop)
            _log.info("stopped")
            return exit_code

    def _tell(self, ports: dict[str, int], seconds: float) -> None:
        front_end, scheduler = self._config.front_end, self._config.scheduler
        for exposure in (*front_end_exposures(front_end), *scheduler_exposures(scheduler)):
            _log.warning(exposure)
        served = {"metrics": scheduler.metrics, "announce": scheduler.announce, "admin": front_end.admin}
        addresses = {name: join_address((served.get(name) or front_end.address).host, port) for name, port in ports.items()}
        _log.info("serving", extra={**addresses, "model": self.front_end.model.name, "seconds": round(seconds, 2)})

    def _metrics(self, engine: EngineThread, to_workers: PeerAccess) -> CollectorRegistry:
        registry = CollectorRegistry(auto_describe=False)
        register_process(registry)
        registry.register(BuildCollector(self.front_end.model.name, self.front_end.model.fingerprint, limits(self._config.scheduler)))
        registry.register(CredentialCollector(PREFIX, [*self.front_end.access.watched, *to_workers.watched]))
        if self._config.scheduler.otlp_endpoint:
            registry.register(ExportCollector(PREFIX, lambda: engine.num_dropped_spans))
        held_back = self.front_end.context_limit
        collector = EngineCollector(self._engine_metrics, self._link_metrics, engine.take_snapshot, lambda: held_back.num_waiting)
        registry.register(collector)
        if self._config.scheduler.vllm_metrics:
            registry.register(VllmNames(collector, self.front_end.model.name))
        self.front_end.register_metrics(registry)
        return registry


async def run_control_plane(config: Config) -> int:
    """Serve until a signal comes; returns the exit code. Raises StartUpError when the control plane cannot start."""
    stop = StopRequests()
    stop.listen()
    return await ControlPlane(config, stop).run()
