"""The engine's thread: one event loop for the engine, the worker links and the announcements."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeVar

import grpc.aio

from control_plane.core.constraint import Constraint
from control_plane.core.options import SchedulerOptions
from control_plane.core.scheduler import Scheduler
from control_plane.edge.event_loop import new_event_loop
from control_plane.edge.profiling.engine_recorder import record_engine
from control_plane.edge.profiling.profiler import ProcessSpans, Profiler
from control_plane.edge.profiling.request_export import RequestExport
from control_plane.edge.text.constraint.mask_threads import MaskThreads
from control_plane.edge.worker_link.link import LinkPhase, LinkState
from control_plane.edge.worker_link.options import LinkOptions
from control_plane.edge.worker_link.registry import AnnounceServicer, WorkerRegistry
from control_plane.edge.worker_link.session import LinkContext, LinkMetrics
from control_plane.engine.engine import Engine
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import Failure, FrontEnd, GenerationRequest
from control_plane.engine.snapshot import EngineSnapshot, RefusedWorker
from control_plane.engine.stats import EngineMetrics
from pypto_serving.process.exported_span import Export, open_export
from pypto_serving.process.listening import EXCLUSIVE_PORT, bind
from pypto_serving.process.probes import Pulse
from pypto_serving.worker.v1 import worker_pb2_grpc

_log = logging.getLogger(__name__)

#: What is served beside the engine, on its event loop.
Beside = Callable[[Engine], AbstractAsyncContextManager[object]]

_R = TypeVar("_R")
_JOIN_SECONDS = 5.0
_SNAPSHOT_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class EngineThreadOptions:
    """Options of the engine, its links, and the port for announcements."""

    scheduler: SchedulerOptions
    engine: EngineOptions
    links: LinkOptions
    workers: Sequence[str]  # addresses to dial
    host: str
    announce_port: int
    announce_credentials: grpc.ServerCredentials | None = None  # plain text
    process_name: str = "control plane"  # in traces
    otlp_endpoint: str | None = None  # of a collector; None: nothing is exported


class Compiler(Protocol):
    """Makes constraints; called on threads that may wait for it."""

    def begin(self, grammar: str, count: int) -> Sequence[Constraint]:
        """Constraints for `count` sequences without tokens."""


class EngineThread:
    """Every public method belongs to the clients' event loop, but those that look at the state may be called on any thread.

    Implements the calls' EnginePort for the front end that it was started with. Others, which live on the engine's event loop, call the
    engine itself.
    """

    def __init__(self, options: EngineThreadOptions, compiler: Compiler, engine_metrics: EngineMetrics, link_metrics: LinkMetrics) -> None:
        self._options = options
        self._engine_metrics = engine_metrics
        self._link_metrics = link_metrics
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._registry: WorkerRegistry | None = None
        self._pulse = Pulse()
        self._export: Export | None = None
        self._front_end: FrontEnd | None = None
        self.profiler = Profiler(options.process_name)  # of the engine's event loop
        self._masks = MaskThreads(compiler.begin, lambda: self._soon(lambda engine: engine.mask_ready()))
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    @property
    def snapshot(self) -> EngineSnapshot:
        """The engine's latest snapshot."""
        return self._engine.snapshot if self._engine else EngineSnapshot()

    def take_snapshot(self) -> EngineSnapshot:
        """A snapshot of this moment, or the latest one if the engine's event loop does not turn.

        Waits for that loop for a moment: for a scrape, on a thread of its own.
        """
        taken: Future[EngineSnapshot] = Future()
        if self._engine:
            self._soon(lambda engine: taken.set_result(engine.take_snapshot()))
            with contextlib.suppress(TimeoutError):
                return taken.result(_SNAPSHOT_SECONDS)
        return self.snapshot

    @property
    def num_dropped_spans(self) -> int:
        """Spans for a collector that were dropped."""
        return self._export.num_dropped if self._export else 0

    def seconds_since_turn(self) -> float:
        """How long ago the engine's event loop was last seen to turn."""
        return self._pulse.seconds_since_turn()

    async def start(self, front_end: FrontEnd | None = None, beside: Beside = nullcontext) -> int:
        """Run the engine; returns the port for announcements. Raises StartUpError when that is taken.

        `beside` is entered on the engine's event loop before anything comes from a worker, and left when the engine has ended.
        """
        self._front_end = front_end
        listening: Future[int] = Future()
        here = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._main, args=(beside, listening, here), name="engine", daemon=True)
        self._thread.start()
        return await asyncio.wrap_future(listening)

    def submit(self, request: GenerationRequest) -> None:
        self._soon(lambda engine: engine.submit(request, self._caller))

    def finish(self, number: int) -> None:
        self._soon(lambda engine: engine.finish(self._caller, number))

    def end(self, request_id: str, failure: Failure, message: str) -> None:
        self._soon(lambda engine: engine.end(self._caller, request_id, failure, message))

    def hold(self, request_id: str) -> None:
        self._soon(lambda engine: engine.hold(self._caller, request_id))

    def unhold(self, request_id: str) -> None:
        self._soon(lambda engine: engine.unhold(self._caller, request_id))

    async def abort(self, request_id: str) -> bool:
        """End a request of whatever front end; returns whether it was live."""
        return await self.call(lambda engine: engine.abort(request_id))

    def drain(self) -> None:
        """Refuse new requests and end those that never ran."""
        self._soon(lambda engine: engine.drain(self._caller))

    @property
    def _caller(self) -> FrontEnd:
        assert self._front_end is not None, "the engine was started without a front end"
        return self._front_end

    async def link_states(self) -> list[LinkState]:
        """Snapshot of the link to every worker."""
        return await self.call(lambda engine: self._registry.states() if self._registry else [])

    async def refused_workers(self) -> list[RefusedWorker]:
        """Those that will not work for us."""
        return await self.call(lambda engine: self.refused_workers_now())

    def refused_workers_now(self) -> list[RefusedWorker]:
        """Those that will not work for us; to be asked for on the engine's event loop."""
        links = self._registry.states() if self._registry else []
        return [RefusedWorker(link.address, link.trouble) for link in links if link.phase is LinkPhase.REFUSED]

    async def call(self, function: Callable[[Engine], _R]) -> _R:
        """What `function` returns on the engine's event loop."""
        future: Future[_R] = Future()

        def apply(engine: Engine) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(engine))
            except Exception as error:  # belongs to the caller, not to the loop
                future.set_exception(error)

        self._soon(apply)
        return await asyncio.wrap_future(future)

    async def stop_profile(self, recording_id: str) -> list[ProcessSpans]:
        """End the recording; returns what everybody has recorded. Raises ProfileRefused."""
        assert self._loop is not None, "the engine has not been started"
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.profiler.stop(recording_id), self._loop))

    async def stop(self) -> None:
        """End the engine and its sessions, and then what makes its masks: for want of one it would fail a request."""
        if self._thread is not None:
            if self._thread.is_alive():
                self._soon(lambda engine: engine.stop())
            await asyncio.to_thread(self._thread.join, _JOIN_SECONDS)
            if self._thread.is_alive():
                _log.error("the engine does not stop", extra={"seconds": _JOIN_SECONDS})
        self._masks.close()

    def _soon(self, function: Callable[[Engine], object]) -> None:
        assert self._loop is not None and self._engine is not None, "the engine has not been started"
        with contextlib.suppress(RuntimeError):  # closed: the engine has ended, and whoever runs the process is told
            self._loop.call_soon_threadsafe(function, self._engine)

    def _main(self, beside: Beside, listening: Future[int], clients_loop: asyncio.AbstractEventLoop) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve(beside, listening))
        except BaseException as error:  # a panic of a library is no Exception
            if not listening.done():
                listening.set_exception(error)
                return
            _log.exception("the engine failed")
            clients_loop.call_soon_threadsafe(self.failed.set_result, error)

    async def _serve(self, beside: Beside, listening: Future[int]) -> None:
        options = self._options
        self._loop = asyncio.get_running_loop()
        engine = self._engine = Engine(Scheduler(options.scheduler), self._engine_metrics, self._masks, options.engine)
        if options.otlp_endpoint:
            self._export = open_export(options.otlp_endpoint, f"pypto-serving {options.process_name}")
            engine.tracers.add(RequestExport(self._export))
        self.profiler.add_local(record_engine(engine))
        context = LinkContext(engine, self._link_metrics, time.monotonic, self.profiler)
        registry = self._registry = WorkerRegistry(options.links, context)
        server = grpc.aio.server(options=[EXCLUSIVE_PORT])
        worker_pb2_grpc.add_AnnounceServiceServicer_to_server(AnnounceServicer(registry), server)
        port = bind(server, options.host, options.announce_port, options.announce_credentials)
        beat = asyncio.create_task(self._pulse.beat())
        try:
            async with beside(engine):
                await server.start()
                registry.start(options.workers)
                listening.set_result(port)
                await engine.run()
        finally:
            beat.cancel()
            await registry.stop()
            await server.stop(None)
            if self._export:
                await asyncio.to_thread(self._export.close)
