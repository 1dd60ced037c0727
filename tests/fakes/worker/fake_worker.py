"""A worker without a model: speaks the worker protocol in this process, with faults on demand.

worker = FakeWorker(FakeWorkerOptions(vocab_size=100), faults={3: WorkerFault.HANG})
await worker.start()          # worker.address
await worker.kill()           # as kill -9: connections break, the port refuses
await worker.start()          # the same port, another incarnation, nothing held
worker.release()              # ends WorkerFault.HANG and WorkerFault.FREEZE
await worker.stop()
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from fakes.worker.fake_lanes import FakeLanes, TokenFunction, count_up
from fakes.worker.worker_faults import WITHHOLDING, WorkerFault, spoil, strays

from pypto_serving.process.listening import bind
from pypto_serving.wire.columns import generation_fields, generation_of
from pypto_serving.wire.contract import MAX_MESSAGE_BYTES
from pypto_serving.worker.v1 import worker_pb2, worker_pb2_grpc

#: What becomes of a frame on its way to the control plane: any number of frames, or bytes that are none.
Tamper = Callable[[worker_pb2.ExecuteResponse], Iterable[worker_pb2.ExecuteResponse | bytes]]


@dataclass(frozen=True)
class FakeWorkerOptions:
    """What the worker says of itself, and how fast it is."""

    name: str = "incarnation"  # with a number behind it, the incarnation
    vocab_size: int = 1000
    max_model_len: int = 512
    max_lanes: int = 8
    max_step_tokens: int = 64
    max_steps_in_flight: int = 2
    lease_ms: int = 10_000
    num_partitions: int = 1
    page_tokens: int = 4
    num_pages: int = 64
    num_groups: int = 1
    model_fingerprint: str = "model"
    weights_digest: str = ""
    numerics_id: str = "fake"
    step_seconds: float = 0.0
    beat_seconds: float = 0.02
    next_token: TokenFunction = count_up


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer):
    """A worker that a test can break. `holder` is the control plane in charge; `hellos` and `steps` are what was received."""

    def __init__(self, options: FakeWorkerOptions | None = None, faults: Mapping[int, WorkerFault] | None = None) -> None:
        self.options = options or FakeWorkerOptions()
        self.faults = dict(faults or {})  # by step id
        self.holder = ""
        self.is_held = False  # refuses every other control plane
        self.is_lenient = False  # takes a control plane of any model
        self.is_resumable = True
        self.tamper: Tamper = lambda frame: (frame,)
        self.broken_rules: list[str] = []  # by the control plane, in the steps that were run
        self.is_draining = False
        self.credentials: grpc.ServerCredentials | None = None  # plain text
        self.num_streams = 0
        self.hellos: list[worker_pb2.Hello] = []
        self.steps: list[worker_pb2.Step] = []
        self.num_heartbeats = 0
        self._incarnations = itertools.count(1)
        self._has_let_go = False
        self._epoch = 0
        self._epoch_error = 0
        self._port = 0
        self._device: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None  # a fault that ends the process, and may start it again
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """host:port; valid once started."""
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start as a new incarnation, on the port of the last one."""
        self.incarnation = f"{self.options.name}-{next(self._incarnations)}"
        self._lanes = FakeLanes(
            self.options.max_lanes, [self.options.page_tokens] * self.options.num_groups, self.options.vocab_size, self.options.next_token
        )
        self._resume = asyncio.Event()
        self._is_frozen = False
        self._is_hanging = False
        self._progress = 0
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()  # frames, bytes that are none, why to abort, None at the end
        self._queue: asyncio.Queue[worker_pb2.Step] = asyncio.Queue()
        self._unacknowledged: list[worker_pb2.StepResult] = []
        self._last_step_id = self._answered_step_id = 0
        self._is_blank = True
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)])
        self._server.add_generic_rpc_handlers([_handler(self)])
        self._port = bind(self._server, "127.0.0.1", self._port, self.credentials)
        await self._server.start()
        self._device = asyncio.create_task(self._run_device())

    async def stop(self) -> None:
        """Stop for good."""
        await self.kill()

    async def revive(self) -> None:
        """Do what a supervisor would: start what died, unless it is being ended or started, and let go on what stands still."""
        if not self.is_alive and (self._ending is None or self._ending.done()):
            await self.start()
        self.release()

    async def kill(self) -> None:
        """Die without a word."""
        if self._device is not None:
            self._device.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._device
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace=None)

    def release(self) -> None:
        """Let a worker that hangs or froze go on."""
        self._is_frozen = False
        self._progress += 1
        self._resume.set()

    @property
    def is_alive(self) -> bool:
        """Whether the process is there."""
        return self._server is not None

    async def Execute(
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Any]:
        """One session, in frames and bytes that are none."""
        frame: Any
        hello = (await anext(request_iterator)).hello
        self.hellos.append(hello)
        await self._refuse_strangers(hello, context)
        self.num_streams += 1
        self._epoch_error = 0
        for frame in self.tamper(self._welcome(hello)):
            yield frame
        outbox = self._outbox
        reader = asyncio.create_task(self._read(request_iterator))
        beats = asyncio.create_task(self._beat())
        try:
            while (frame := await outbox.get()) is not None:
                if isinstance(frame, str):
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, frame)
                if not self._is_frozen:
                    for sent in self.tamper(frame):
                        yield sent
        finally:
            reader.cancel()
            beats.cancel()

    async def _refuse_strangers(self, hello: worker_pb2.Hello, context: grpc.aio.ServicerContext) -> None:
        if hello.model_fingerprint != self.options.model_fingerprint and not self.is_lenient:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"this worker serves model {self.options.model_fingerprint}")
        if self.is_held and hello.control_plane_id != self.holder and not hello.takeover:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"held by {self.holder} for another {self.num_streams + 3} s")

    def _welcome(self, hello: worker_pb2.Hello) -> worker_pb2.ExecuteResponse:
        if hello.control_plane_id != self.holder:
            self.holder = hello.control_plane_id
            self._epoch += 1
        self._outbox = asyncio.Queue()
        is_resumed = self.is_resumable and not self._has_let_go and hello.resume_incarnation == self.incarnation
        if is_resumed:
            for result in self._unacknowledged:
                if result.step_id > hello.acked_step_id:
                    self._send(result=result)
        else:
            self._forget()
            self._last_step_id = 0
        self._has_let_go = False
        options = self.options
        return self._frame(
            welcome=worker_pb2.Welcome(
                epoch=self._epoch,
                incarnation=self.incarnation,
                resumed=is_resumed,
                last_step_id=self._last_step_id,
                model_fingerprint=options.model_fingerprint,
                weights_digest=options.weights_digest,
                numerics_id=options.numerics_id,
                limits=worker_pb2.WorkerLimits(
                    vocab_size=options.vocab_size,
                    max_model_len=options.max_model_len,
                    max_lanes=options.max_lanes,
                    max_step_tokens=options.max_step_tokens,
                    max_steps_in_flight=options.max_steps_in_flight,
                    lease_ms=options.lease_ms,
                    num_partitions=options.num_partitions,
                ),
                cache_groups=[
                    worker_pb2.CacheGroup(
                        name=f"group {number}",
                        page_tokens=options.page_tokens,
                        num_pages=options.num_pages,
                    )
                    for number in range(options.num_groups)
                ],
            )
        )

    def _forget(self) -> None:
        self._queue = asyncio.Queue()
        self._unacknowledged.clear()
        self._lanes.clear()
        self._is_blank = True
        if self._device is not None and not self._is_hanging:
            self._progress += 1
            self._device.cancel()
            self._device = asyncio.create_task(self._run_device())

    async def _read(self, frames: AsyncIterator[worker_pb2.ExecuteRequest]) -> None:
        async for frame in frames:
            if frame.epoch != self._epoch:
                continue
            kind = frame.WhichOneof("frame")
            if kind == "step":
                self._take_step(frame.step)
            elif kind == "reset":
                self._forget()
                self._send(reset_done=worker_pb2.ResetDone(last_step_id=self._last_step_id))
            else:
                self.num_heartbeats += 1

    def _take_step(self, step: worker_pb2.Step) -> None:
        num_in_flight = step.step_id - self._answered_step_id
        if not self._is_blank and step.step_id != self._last_step_id + 1:
            self._outbox.put_nowait(f"step {step.step_id} after step {self._last_step_id}")
        elif not self._is_blank and num_in_flight > self.options.max_steps_in_flight:
            self._outbox.put_nowait(f"step {step.step_id} makes {num_in_flight} in flight")
        else:
            self.steps.append(step)
            self._answered_step_id = step.step_id - 1 if self._is_blank else self._answered_step_id
            self._last_step_id = step.step_id
            self._is_blank = False
            self._unacknowledged = [result for result in self._unacknowledged if result.step_id > step.acked_step_id]
            self._queue.put_nowait(step)

    async def _beat(self) -> None:
        while True:
            progress = worker_pb2.Progress(progress=self._progress, slowest_unit_us=1000, draining=self.is_draining)
            self._send(progress=progress)
            await asyncio.sleep(self.options.beat_seconds)

    async def _run_device(self) -> None:
        while True:
            queue = self._queue
            step = await queue.get()
            fault = self.faults.pop(step.step_id, None)
            if self.options.step_seconds:
                await asyncio.sleep(self.options.step_seconds)
            if fault is not None:
                await self._before_running(fault)
            if queue is not self._queue:
                continue  # it was reset while it hung
            self._progress += 1
            result = self._lanes.run(step)
            self.broken_rules += [result.error] if result.error else []
            self._answered_step_id = step.step_id
            self._unacknowledged.append(result)
            self._answer(fault, result)

    async def _before_running(self, fault: WorkerFault) -> None:
        if fault in (WorkerFault.CRASH, WorkerFault.RESTART):
            self._ending = asyncio.create_task(self._restart() if fault is WorkerFault.RESTART else self.kill())  # it ends this very task
            await asyncio.Event().wait()
        elif fault in (WorkerFault.HANG, WorkerFault.FREEZE):
            self._is_frozen = fault is WorkerFault.FREEZE
            self._is_hanging = True
            self._resume.clear()
            await self._resume.wait()
            self._is_hanging = False
        elif fault is WorkerFault.ENDED_LANES:
            self._lanes.end_all()
        elif fault is WorkerFault.LATE:
            await asyncio.sleep(5 * self.options.beat_seconds)
        elif fault is WorkerFault.OTHER_EPOCH:
            self._epoch_error = 1
        elif fault in (WorkerFault.END_OF_STREAM, WorkerFault.LET_GO):
            self._has_let_go = fault is WorkerFault.LET_GO
            self._outbox.put_nowait(None)

    def _answer(self, fault: WorkerFault | None, result: worker_pb2.StepResult) -> None:
        for stray in strays(fault, result):
            self._outbox.put_nowait(stray if isinstance(stray, bytes) else self._frame(**stray))
        if fault is WorkerFault.STALE_EPOCH:
            stale = worker_pb2.StepResult(step_id=result.step_id, error="of another life")
            self._outbox.put_nowait(worker_pb2.ExecuteResponse(epoch=self._epoch + 1, result=stale))
        elif fault is WorkerFault.LANE_ERROR:
            number, lane = next(iter(self._lanes.live.items()))
            result.lane_errors.add(lane=number, **generation_fields(generation_of(lane.admission)), message="not a number")
        if fault not in WITHHOLDING:
            spoil(fault, result)
            self._send(result=result)

    async def _restart(self) -> None:
        await self.kill()
        await self.start()

    def _frame(self, **frame: Any) -> worker_pb2.ExecuteResponse:
        return worker_pb2.ExecuteResponse(epoch=self._epoch + self._epoch_error, **frame)

    def _send(self, **frame: Any) -> None:
        self._outbox.put_nowait(self._frame(**frame))


def _handler(worker: FakeWorker) -> grpc.GenericRpcHandler:
    """As the generated one, but it sends bytes as they are."""
    execute = grpc.stream_stream_rpc_method_handler(
        worker.Execute,
        request_deserializer=worker_pb2.ExecuteRequest.FromString,
        response_serializer=lambda frame: frame if isinstance(frame, bytes) else frame.SerializeToString(),
    )
    return grpc.method_handlers_generic_handler("pypto_serving.worker.v1.WorkerService", {"Execute": execute})
