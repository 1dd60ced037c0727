"""The life of a worker process: load, bind, serve, drain, stop."""

import asyncio
import gc
import logging
import secrets
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from pypto_serving.process import logs
from pypto_serving.process.credentials.metrics import CredentialCollector
from pypto_serving.process.credentials.tls import ReloadedTls, server_credentials, watch_tls
from pypto_serving.process.export_metrics import ExportCollector
from pypto_serving.process.exported_span import open_export
from pypto_serving.process.health import HEALTH, HealthService
from pypto_serving.process.listening import bind
from pypto_serving.process.metrics_endpoint import register_process, serve_metrics
from pypto_serving.process.options import SERVER_TLS_FLAGS
from pypto_serving.process.probes import Probes, Pulse
from pypto_serving.process.reflection import enable_reflection
from pypto_serving.process.start_up import given_by
from pypto_serving.process.stop_requests import StopRequests
from pypto_serving.worker.v1 import worker_pb2, worker_pb2_grpc
from worker.config import WorkerConfig
from worker.loaded_runner import LoadedRunner, load_runner
from worker.operator_profile import OperatorProfile
from worker.progress import ProgressCounter, phase_bar, phase_facts
from worker.service.announce import Announcer
from worker.service.channel_options import SERVER_OPTIONS, Options
from worker.service.device_thread import DeviceThread
from worker.service.metrics import WorkerMetrics
from worker.service.servicer import WorkerServicer

_log = logging.getLogger(__name__)

_SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
_IDLE_POLL_SECONDS = 0.05
_STOP_SECONDS = 1.0
_SHOW_SECONDS, _TELL_SECONDS = 0.2, 5.0


class WorkerServer:
    """The gRPC server: WorkerService, health and reflection."""

    def __init__(self, servicer: WorkerServicer, options: Options = SERVER_OPTIONS) -> None:
        self._servicer = servicer
        self._health = HealthService()
        self._server = grpc.aio.server(options=options)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        enable_reflection(self._server, _SERVICE, HEALTH)

    async def start(self, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
        """Serve on host:port and return the bound port; raises StartUpError when the port is taken."""
        self._set_health(False)
        bound = bind(self._server, host, port, credentials)
        await self._server.start()
        self._timekeeper = asyncio.create_task(self._servicer.keep_time())
        self._timekeeper.add_done_callback(self._timekeeper_ended)
        self._set_health(True)
        return bound

    async def drain(self, stop: StopRequests, seconds: float) -> None:
        """Take no part in new work, and wait until the sequences are gone, the time is over or there is a reason to stop at once."""
        self._set_health(False)
        self._servicer.drain()
        deadline = time.monotonic() + seconds
        while not (self._servicer.is_idle or self._servicer.device_failure.done() or stop.at_once.is_set() or time.monotonic() >= deadline):
            await asyncio.sleep(_IDLE_POLL_SECONDS)

    async def stop(self, reason: str) -> None:
        """End the stream with UNAVAILABLE and stop serving."""
        self._set_health(False)
        self._servicer.end_stream(reason)
        await self._server.stop(_STOP_SECONDS)
        self._timekeeper.cancel()

    def _timekeeper_ended(self, timekeeper: asyncio.Task[None]) -> None:
        """Without it no lease would end, and no progress be told."""
        if not timekeeper.cancelled():
            self._servicer.device_failed(f"the time is not kept any more: {timekeeper.exception()!r}")

    def _set_health(self, is_serving: bool) -> None:
        for service in ("", _SERVICE):
            self._health.set(service, is_serving)


async def run_worker(config: WorkerConfig, device: DeviceThread, progress: ProgressCounter) -> int:
    """Serve until a signal comes or the device fails; returns the exit code. Raises StartUpError when the worker cannot start."""
    stop = StopRequests()
    stop.listen()
    started_at = time.monotonic()
    async with AsyncExitStack() as cleanup:
        tls = _watch_tls(config)
        metrics = WorkerMetrics()
        metrics.registry.register(CredentialCollector("pypto_serving_worker_", [tls] if tls else []))
        register_process(metrics.registry)
        metrics.watch_progress(progress)
        pulse = Pulse()
        cleanup.callback(asyncio.create_task(pulse.beat()).cancel)
        probes = Probes({"the event loop": pulse.seconds_since_turn}, starting="loading the model")
        endpoint = serve_metrics(metrics.registry, config.metrics_host, config.metrics_port, probes)
        cleanup.callback(endpoint.close)
        loading = asyncio.create_task(device.call(partial(load_runner, config, progress)))
        telling = asyncio.create_task(_tell_progress(progress))
        is_loaded = await _completed_before(loading, stop)
        telling.cancel()
        if not is_loaded:
            return 0
        loaded = loading.result()
        description = loaded.describe(secrets.token_hex(8), config.max_steps_in_flight, config.lease_seconds)
        servicer = WorkerServicer(description, device, progress, metrics, operators=OperatorProfile)
        if config.otlp_endpoint:
            export = open_export(config.otlp_endpoint, "pypto-serving worker")
            cleanup.callback(export.close)
            metrics.registry.register(ExportCollector("pypto_serving_worker_", lambda: export.num_dropped))
            servicer.export_to(export)
        device.serve(loaded.runner, servicer)
        load_seconds = time.monotonic() - started_at
        _expose(metrics, loaded, load_seconds)
        server = WorkerServer(servicer)
        port = await server.start(config.host, config.port, server_credentials(tls) if tls else None)
        gc.collect()
        gc.freeze()
        probes.set_started(lambda: servicer.trouble, lambda: servicer.stall)
        _log_start(config, loaded, port=port, metrics_port=endpoint.port, load_seconds=load_seconds)
        if config.announce:
            announcer = Announcer(config.announce, config.advertised_address(port), description.incarnation, tls)
            cleanup.callback(asyncio.create_task(announcer.run()).cancel)
        return await _serve(server, servicer, stop, config)


def _watch_tls(config: WorkerConfig) -> ReloadedTls | None:
    with given_by(*SERVER_TLS_FLAGS):
        return watch_tls("tls", config.tls) if config.tls else None


async def _tell_progress(progress: ProgressCounter) -> None:
    """Show how far the start has come, until cancelled: on a terminal at once, in the log now and then."""
    told_at = time.monotonic()
    try:
        while True:
            await asyncio.sleep(_SHOW_SECONDS)
            phase, count, now = progress.phase, progress.count, time.monotonic()
            seconds = progress.seconds_since(phase)
            if logs.show_below(phase_bar(phase, count, seconds)) or now - told_at < _TELL_SECONDS:
                continue
            told_at = now
            if facts := phase_facts(phase, count, seconds):
                _log.info(phase.name, extra=facts)
    finally:
        logs.show_below("")


async def _completed_before(task: asyncio.Task[LoadedRunner], stop: StopRequests) -> bool:
    waiting = asyncio.create_task(stop.drain.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not task.done():
        task.cancel()
        return False
    return True


async def _serve(server: WorkerServer, servicer: WorkerServicer, stop: StopRequests, config: WorkerConfig) -> int:
    stopping = asyncio.create_task(stop.drain.wait())
    ends: set[asyncio.Future[Any]] = {stopping, servicer.device_failure}
    if config.exit_when_orphaned:
        ends.add(servicer.orphaned)
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        _log.info("draining", extra={"drain_seconds": config.drain_seconds})
        await server.drain(stop, config.drain_seconds)
    stopping.cancel()
    if servicer.device_failure.done():
        reason = servicer.device_failure.result()
        _log.error("worker failed", extra={"reason": reason})
        await server.stop(reason)
        return 1
    await server.stop("the worker was told to stop" if stop.drain.is_set() else "the worker has lost its owner")
    _log.info("stopped", extra={"orphaned": not stop.drain.is_set()})
    return 0


def _expose(metrics: WorkerMetrics, loaded: LoadedRunner, load_seconds: float) -> None:
    labels = {"numerics_id": loaded.numerics_id, "architecture": loaded.architecture, "model_fingerprint": loaded.model_fingerprint}
    pages = {group.name: group.num_pages for group in loaded.cache_groups}
    metrics.describe(labels, load_seconds, loaded.kv_cache_bytes, pages)


def _log_start(config: WorkerConfig, loaded: LoadedRunner, *, port: int, metrics_port: int, load_seconds: float) -> None:
    facts = {
        "address": f"{config.host}:{port}",
        "metrics": f"{config.metrics_host}:{metrics_port}",
        "model": str(config.model),
        "architecture": loaded.architecture,
        "pages": sum(group.num_pages for group in loaded.cache_groups),
        "max_model_len": loaded.limits.max_model_len,
        "numerics_id": loaded.numerics_id,
        "load_seconds": round(load_seconds, 2),
    }
    if config.is_exposed:
        _log.warning(f"everybody who reaches {config.host} may use this worker: give it --tls-client-ca, --tls-cert and --tls-key")
    _log.info("serving", extra=facts)
