"""A scheduler as a process of its own: the engine, the links to workers, and the port for front ends."""

import asyncio
import gc
import logging
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from control_plane.edge.access.access import PeerAccess
from control_plane.edge.config import SchedulerConfig, scheduler_exposures
from control_plane.edge.engine_thread import EngineThread
from control_plane.edge.frontend_link.service import SessionOptions
from control_plane.edge.lease.lease import Lease, open_store
from control_plane.edge.metrics.collector import BuildCollector, EngineCollector
from control_plane.edge.metrics.counts import EngineCounts, LinkCounts
from control_plane.edge.metrics.families import PREFIX
from control_plane.edge.metrics.front_ends import AllProcesses
from control_plane.edge.metrics.vllm_names import VllmNames
from control_plane.edge.model_files import read_identity
from control_plane.edge.server.engine_options import engine_options, limits
from control_plane.edge.server.front_end_port import FrontEndServer, StoppedStandingBy
from control_plane.edge.server.late_compiler import LateCompiler
from control_plane.edge.server.parent import attend_parent, tell_parent, tell_serving
from pypto_serving.process.address import join_address
from pypto_serving.process.credentials.metrics import CredentialCollector
from pypto_serving.process.export_metrics import ExportCollector
from pypto_serving.process.metrics_endpoint import register_process, serve_metrics
from pypto_serving.process.probes import Probes, Pulse
from pypto_serving.process.stop_requests import StopRequests
from pypto_serving.wire.model_directory import name_model

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_STUCK_SECONDS = 1.5


class SchedulerProcess:
    """Owns all parts of the process. The engine has an event loop of its own; this one waits for signals and the lease.

    standing by --lease is held--> serving --signal, drain, lease is lost--> gone
    """

    def __init__(self, config: SchedulerConfig, stop: StopRequests, is_supervised: bool) -> None:
        assert config.front_ends is not None
        self._config = replace(config, takeover=config.takeover or config.lease is not None)
        self._stop = stop
        self._is_supervised = is_supervised
        self._instance_id = secrets.token_hex(8)
        self._lease = Lease(open_store(config.lease, os.environ), config.lease.seconds) if config.lease else None
        self._compiler = LateCompiler(config.model)
        self._engine_metrics, self._link_metrics = EngineCounts(), LinkCounts()
        self._started_at = time.monotonic()
        self._drain_asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pulse = Pulse()
        self._probes: Probes
        self._engine: EngineThread
        self._server: FrontEndServer
        self.ports: dict[str, int] = {}  # by what they are for; empty until everything is served

    async def run(self) -> int:
        """Serve until a stop is requested; returns the exit code. Raises StartUpError when it cannot start."""
        async with AsyncExitStack() as cleanup:
            exit_code = await self._run(cleanup)
        _log.info("stopped")
        return exit_code

    async def _run(self, cleanup: AsyncExitStack) -> int:
        metrics_port = self._assemble(cleanup)
        if self._is_supervised:
            assert self._config.front_ends and self._config.front_ends.socket
            attend_parent(
                self._config.front_ends.socket, self._stop.request_stop_at_once, lambda: self._engine.seconds_since_turn() < _STUCK_SECONDS
            )
        cleanup.callback(asyncio.create_task(self._pulse.beat()).cancel)
        if not self._config.takeover or self._lease:
            self._compiler.prepare()
        starting = asyncio.create_task(self._engine.start(beside=lambda engine: self._server.serve(self._engine, engine)))
        if self._lease:
            cleanup.push_async_callback(self._lease.release)  # when nothing runs any more
        cleanup.push_async_callback(self._engine.stop)
        await _first(asyncio.wrap_future(self._server.bound), starting)
        ports = {"frontend": self._server.bound.result(), "metrics": metrics_port}
        if not await self._may_serve(ports):
            self._server.may_serve.set_exception(StoppedStandingBy())
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        self._server.may_serve.set_result(None)
        ports["announce"] = await starting
        gc.collect()
        gc.freeze()
        self._probes.set_started(self._trouble)
        self._tell(ports)
        self.ports = ports
        return await self._serve()

    def _assemble(self, cleanup: AsyncExitStack) -> int:
        """Make the parts that do not run yet; returns the port of the metrics."""
        config, model = self._config, read_identity(self._config.model, self._config.served_name)
        assert config.front_ends is not None
        to_workers, to_front_ends = PeerAccess("worker_tls", config.worker_tls), PeerAccess("link_tls", config.front_ends.tls)
        options = engine_options(config, self._instance_id, model, to_workers)
        self._engine = EngineThread(options, self._compiler, self._engine_metrics, self._link_metrics)
        sessions = SessionOptions(self._instance_id, model.fingerprint, name_model(config.model), model.vocab_size)
        self._server = FrontEndServer(config.front_ends, to_front_ends.credentials(), sessions, self._refusal, self._start_drain)
        registry = CollectorRegistry(auto_describe=False)
        register_process(registry)
        registry.register(BuildCollector(model.name, model.fingerprint, limits(config)))
        registry.register(CredentialCollector(PREFIX, [*to_workers.watched, *to_front_ends.watched]))
        if config.otlp_endpoint:
            registry.register(ExportCollector(PREFIX, lambda: self._engine.num_dropped_spans))
        engine, server = self._engine, self._server
        collector = EngineCollector(self._engine_metrics, self._link_metrics, engine.take_snapshot, lambda: server.counts().num_held_back)
        registry.register(collector)
        if config.vllm_metrics:
            registry.register(VllmNames(collector, model.name))
        loops = {"the process's event loop": self._pulse.seconds_since_turn, "the engine's event loop": engine.seconds_since_turn}
        self._probes = Probes(loops)
        endpoint = serve_metrics(AllProcesses(registry, self._front_end_metrics), config.metrics.host, config.metrics.port, self._probes)
        cleanup.callback(endpoint.close)
        return endpoint.port

    def _front_end_metrics(self) -> Mapping[str, bytes]:
        """By the name before the part of an id that is new at every start; of two sessions the newer one counts."""
        front_ends = sorted(self._server.front_ends, key=lambda each: each.epoch)
        return {each.front_end_id.rpartition("-")[0]: each.metrics for each in front_ends if each.metrics}

    def _trouble(self) -> str:
        """Why it is not ready. Alone: why it takes no requests of front ends, which find the one scheduler that does by this. Under a
        supervisor: why a client's request would not succeed now, for which it takes a front end too."""
        takes_calls = not self._is_supervised or any(not each.is_draining for each in self._server.front_ends)
        return self._server.trouble or ("" if takes_calls else "no front end takes calls")

    def _refusal(self) -> str:
        holder = self._lease.holder if self._lease else ""
        return f"this scheduler stands by: {holder or 'nobody yet'} holds the lease"

    async def _may_serve(self, ports: Mapping[str, int]) -> bool:
        """Wait for the lease, if one is needed; returns whether it is ours."""
        if self._lease is None:
            return True
        self._lease.start()
        self._probes.set_started(self._trouble)  # it does what it was started for, though that may be to wait
        _log.info("standing by", extra=self._addresses(ports))
        await _first(asyncio.create_task(self._lease.wait_until_held()), asyncio.create_task(self._stop.drain.wait()))
        return not self._stop.drain.is_set()

    async def _serve(self) -> int:
        """Serve to the end; returns the exit code."""
        lost = asyncio.create_task(self._lease.wait_until_lost() if self._lease else asyncio.Event().wait())
        stopped, drained = asyncio.create_task(self._stop.drain.wait()), asyncio.create_task(self._wait_for_drain())
        await _first(lost, stopped, drained, self._engine.failed)
        has_failed = self._engine.failed.done() or lost.done()
        for task in (lost, stopped, drained):
            task.cancel()
        _log.info("stopping")
        return 1 if has_failed else 0

    def _start_drain(self) -> None:
        """What an operator asks for, on the engine's event loop: the supervisor's affair, or that of all front ends."""
        if self._is_supervised:
            tell_parent(draining=True)
        else:
            self._server.drain()
            self._loop.call_soon_threadsafe(self._drain_asked.set)

    async def _wait_for_drain(self) -> None:
        await self._drain_asked.wait()
        while self._server.front_ends:
            await asyncio.sleep(_POLL_SECONDS)

    def _addresses(self, ports: Mapping[str, int]) -> dict[str, str]:
        config = self._config
        assert config.front_ends is not None
        places = {"frontend": config.front_ends.address, "metrics": config.metrics, "announce": config.announce}
        found = {name: join_address(places[name].host, port) for name, port in ports.items()}
        return found if config.front_ends.socket is None else found | {"frontend": f"unix:{config.front_ends.socket}"}

    def _tell(self, ports: dict[str, int]) -> None:
        if self._is_supervised:
            known = {name: port for name, port in ports.items() if port}
            tell_serving(known, {name: address for name, address in self._addresses(ports).items() if name in known})
            return
        for exposure in scheduler_exposures(self._config):
            _log.warning(exposure)
        _log.info("serving", extra={**self._addresses(ports), "seconds": round(time.monotonic() - self._started_at, 2)})


async def _first(*ends: "asyncio.Future[Any]") -> None:
    """Wait until one of them is done; raises what it raised."""
    done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in done:
        end.result()


async def run_scheduler(config: SchedulerConfig, is_supervised: bool = False) -> int:
    """Serve until a signal comes; returns the exit code. Raises StartUpError when the scheduler cannot start."""
    stop = StopRequests()
    stop.listen()
    return await SchedulerProcess(config, stop, is_supervised).run()
