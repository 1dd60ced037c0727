"""A front end as a process of its own, in session with a scheduler."""

import asyncio
import gc
import logging
import secrets
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from control_plane.edge.access.access import PeerAccess
from control_plane.edge.config import FrontEndConfig, front_end_exposures
from control_plane.edge.metrics.collector import BuildCollector
from control_plane.edge.metrics.families import PREFIX
from control_plane.edge.metrics.front_ends import RenderedMetrics
from control_plane.edge.scheduler_link.link import SchedulerLink
from control_plane.edge.scheduler_link.options import FrontEndNumbers, FrontEndSide, SchedulerLinkOptions
from control_plane.edge.server.front_end import FrontEndAssembly
from control_plane.edge.server.parent import attend_parent, tell_serving
from control_plane.edge.service.admin_proxy import AdminProxy
from control_plane.edge.service.admission.context_limit import Absence
from control_plane.engine.ports import Outputs
from pypto_serving.process.address import join_address
from pypto_serving.process.credentials.metrics import CredentialCollector
from pypto_serving.process.credentials.tls import channel_credentials
from pypto_serving.process.descriptors import DescriptorWatch
from pypto_serving.process.log_level import LogLevel
from pypto_serving.process.metrics_endpoint import register_process, serve_metrics
from pypto_serving.process.probes import Probes
from pypto_serving.process.stop_requests import StopRequests
from pypto_serving.recording.recorder import SpanRecorder
from pypto_serving.wire.model_directory import name_model

_log = logging.getLogger(__name__)

_DESCRIPTOR_SECONDS = 1.0

#: New objects from one collection of the youngest to the next. With Python's 700 each finds many that only wait for their call to end.
_COLLECTION_OBJECTS = 5000


class FrontEndProcess:
    """Owns all parts of the process; lives on its event loop."""

    def __init__(self, config: FrontEndConfig, stop: StopRequests, meets_at: Path | None) -> None:
        """`meets_at`: the scheduler's socket under a supervisor; None: there is no supervisor."""
        self._config = config
        self._stop = stop
        self._meets_at = meets_at
        self._registry = CollectorRegistry(auto_describe=False)
        self._rendered = RenderedMetrics(self._registry)
        self._front_end: FrontEndAssembly
        self.ports: dict[str, int] = {}  # by what they are for; empty until everything is served

    async def run(self) -> int:
        """Serve until a stop is requested; returns the exit code. Raises StartUpError when it cannot start."""
        started_at = time.monotonic()
        config = self._config
        if self._meets_at:
            attend_parent(self._meets_at, self._stop.request_stop_at_once)
        async with AsyncExitStack() as cleanup:
            cleanup.callback(self._rendered.close)
            to_scheduler = PeerAccess("link_tls", config.link.tls if config.link else None)
            front_end = self._front_end = FrontEndAssembly(config, cleanup)
            link = self._link(to_scheduler)
            front_end.context_limit.absence = lambda: self._absence(link)
            front_end.attach(link)
            self._register_metrics(to_scheduler)
            ports = {"address": front_end.port}
            loops = {"the clients' event loop": front_end.pulse.seconds_since_turn}
            probes = Probes(loops)
            if config.metrics:
                endpoint = serve_metrics(self._registry, config.metrics.host, config.metrics.port, probes)
                cleanup.callback(endpoint.close)
                ports["metrics"] = endpoint.port
            link.start()
            cleanup.push_async_callback(link.close)
            await front_end.serve(link, secrets.token_hex(8))
            if config.admin:
                ports["admin"] = await front_end.serve_admin(AdminProxy(lambda: link.channel))
            watching = asyncio.create_task(_watch_descriptors())
            cleanup.callback(watching.cancel)
            gc.collect()
            gc.freeze()
            gc.set_threshold(_COLLECTION_OBJECTS)
            probes.set_started(lambda: f"no scheduler is in session: {link.trouble}" if link.trouble else front_end.trouble)
            self._tell(ports, time.monotonic() - started_at)
            self.ports = ports
            exit_code = await front_end.run(link, self._stop)
            _log.info("stopped")
            return exit_code

    def _link(self, to_scheduler: PeerAccess) -> SchedulerLink:
        config, tls, model = self._config, to_scheduler.to_dial(), self._front_end.model
        assert config.link is not None
        name = config.name or join_address(socket.gethostname(), self._front_end.port)
        options = SchedulerLinkOptions(
            addresses=config.link.addresses,
            front_end_id=f"{name}-{secrets.token_hex(4)}",
            model_fingerprint=model.fingerprint,
            model_name=name_model(config.model.directory),
            vocab_size=model.vocab_size,
            credentials=(lambda: channel_credentials(tls.files.current())) if tls else None,
            tls_name=tls.name if tls else None,
            grace_seconds=config.link.grace_seconds,
        )

        def deliver(outputs: Outputs) -> None:
            self._front_end.live.deliver(outputs)

        def record(recorder: SpanRecorder | None) -> None:
            self._front_end.live.record(recorder)

        metrics = None if config.metrics else self._rendered.latest
        side = FrontEndSide(deliver, self._stop.drain.set, self._numbers, metrics, record, LogLevel().change)
        return SchedulerLink(options, side, active_clock=self._front_end.clock)

    def _absence(self, link: SchedulerLink) -> Absence:
        """Without a scheduler nobody knows of workers."""
        no_worker, config = self._front_end.context_limit.no_worker, self._config.link
        assert config is not None
        if not link.trouble:
            return replace(no_worker, since=link.since)
        return Absence(f"no scheduler within {config.grace_seconds:g} s: {link.trouble}", config.grace_seconds, link.since)

    def _numbers(self) -> FrontEndNumbers:
        counts = self._front_end.counts()
        return FrontEndNumbers(counts.num_calls, counts.num_held_back, self._front_end.live.num_unwritten_bytes)

    def _register_metrics(self, to_scheduler: PeerAccess) -> None:
        register_process(self._registry)
        self._registry.register(BuildCollector(self._front_end.model.name, self._front_end.model.fingerprint, {}))
        self._registry.register(CredentialCollector(PREFIX, [*self._front_end.access.watched, *to_scheduler.watched]))
        self._front_end.register_metrics(self._registry)

    def _tell(self, ports: dict[str, int], seconds: float) -> None:
        config = self._config
        served = {"metrics": config.metrics, "admin": config.admin}
        addresses = {name: join_address((served.get(name) or config.address).host, port) for name, port in ports.items()}
        shown = {**addresses, "model": self._front_end.model.name}
        if self._meets_at:
            tell_serving({name: port for name, port in ports.items() if name == "admin"}, shown)
            return
        for exposure in front_end_exposures(config):
            _log.warning(exposure)
        _log.info("serving", extra={**shown, "seconds": round(seconds, 2)})


async def _watch_descriptors() -> None:
    """A connection takes one; the endpoint of metrics, which looks at them elsewhere, may not be here."""
    watch = DescriptorWatch()
    while True:
        watch.check()
        await asyncio.sleep(_DESCRIPTOR_SECONDS)


async def run_front_end(config: FrontEndConfig, meets_at: Path | None = None) -> int:
    """Serve until a signal comes; returns the exit code. Raises StartUpError when the front end cannot start."""
    stop = StopRequests()
    stop.listen()
    return await FrontEndProcess(config, stop, meets_at).run()
