"""The link of a front end to the scheduler: one session after the other, so that calls notice nothing of the change."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

import grpc
import grpc.aio

from control_plane.edge.scheduler_link import commands
from control_plane.edge.scheduler_link.live_requests import LiveRequests
from control_plane.edge.scheduler_link.options import FrontEndNumbers, SchedulerLinkOptions
from control_plane.edge.scheduler_link.outputs import read_outputs, read_state
from control_plane.edge.scheduler_link.stream import SessionLost, SessionStream, open_stream
from control_plane.engine.ports import Failure, GenerationRequest, Outputs
from control_plane.engine.snapshot import EngineSnapshot
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.scheduler.v1 import scheduler_pb2_grpc
from pypto_serving.wire.checks import FrameError, is_unknown_kind

_log = logging.getLogger(__name__)

#: Submissions in one message stay below this, so that the loop breathes while thousands of requests change over to another scheduler.
_MAX_SUBMISSION_BYTES = 256 * 1024

#: A snapshot that is older says nothing of the scheduler's health any more.
_STALE_SECONDS = 1.5

#: A session that was shorter was no success: the next dial waits.
_PROVEN_SECONDS = 1.0


class SchedulerLink:
    """Implements the calls' EnginePort. Everything belongs to the clients' event loop; one task dials, another one watches.

    dialling --Welcome--> in session --stream ends, frame is broken, silence--> dialling
        |                     |
        '-- a request waits   '-- what is live was submitted once more; RequestAccepted is told the calls only once
            too long: it ends
    """

    def __init__(
        self,
        options: SchedulerLinkOptions,
        deliver: Callable[[Outputs], None],
        drained: Callable[[], None],
        numbers: Callable[[], FrontEndNumbers],
        metrics: Callable[[], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deliver` gets what the engine brings; `drained` is called when the operator drains all; `numbers` and `metrics` (Prometheus'
        text) are told the scheduler now and then."""
        self._options = options
        self._deliver = deliver
        self._drained = drained
        self._numbers = numbers
        self._metrics = metrics
        self._clock = clock
        self._requests = LiveRequests(options.max_losses)
        self._commands: list[pb.Command] = []
        self._is_draining = False
        self._next_address = 0
        self._stream: SessionStream | None = None
        self._in_session = asyncio.Event()
        self._writable = asyncio.Event()
        self._is_beat_due = False
        self._metrics_due = 0.0
        self._num_silent_beats = 0
        self._silent: asyncio.Event = asyncio.Event()
        self._snapshot = EngineSnapshot()
        self._snapshot_time = -math.inf
        self._outage_since = clock()
        self._trouble = "not dialled yet"
        self._troubles: dict[str, str] = {}  # by address; empty in session
        self._tasks: list[asyncio.Task[None]] = []
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()  # by a defect of ours

    def start(self) -> None:
        """Dial, until `close`."""
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._note_failure)

    async def close(self) -> None:
        """End the session; nothing is delivered any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What calls and operators want

    @property
    def channel(self) -> grpc.aio.Channel | None:
        """The connection to the scheduler in session, which serves operators too."""
        return self._stream.channel if self._stream else None

    @property
    def snapshot(self) -> EngineSnapshot:
        """The latest numbers of the engine. Without a scheduler there are no workers, and nothing is well."""
        if self._clock() - self._snapshot_time > _STALE_SECONDS:
            return replace(self._snapshot, workers=(), healthy=False)
        return self._snapshot

    def seconds_since_turn(self) -> float:
        """0: no loop of this process belongs to an engine. What the scheduler's is like shows in the snapshot."""
        return 0.0

    def submit(self, request: GenerationRequest) -> None:
        """Hand a request over; it waits while there is no scheduler."""
        self._requests.add(request, self._clock())
        self._writable.set()

    def finish(self, number: int) -> None:
        """End a choice: its text contains a stop string."""
        self._command(self._requests.finish(number, self._clock()), pb.Command(finish=number))

    def hold(self, request_id: str) -> None:
        """Let a request pause."""
        self._command(self._requests.hold(request_id, True), pb.Command(hold=request_id))

    def unhold(self, request_id: str) -> None:
        """Let a request go on."""
        self._command(self._requests.hold(request_id, False), pb.Command(unhold=request_id))

    def end(self, request_id: str, failure: Failure, message: str) -> None:
        """End a request."""
        self._command(self._requests.end(request_id, failure, message), commands.end(request_id, failure, message))

    def drain(self) -> None:
        """Let the scheduler refuse new requests of this front end, and end those that never ran."""
        self._command(not self._is_draining and self._stream is not None, commands.DRAIN)
        self._is_draining = True

    async def abort(self, request_id: str) -> bool:
        """End a request of whatever front end; returns whether it was live. Raises TimeoutError, as EnginePort says."""
        if request_id in self._requests:
            self.end(request_id, Failure.CANCELLED, "request aborted")
            return True
        try:
            async with asyncio.timeout(self._options.grace_seconds):
                while (was_live := await self._abort_elsewhere(request_id)) is None:
                    pass
        except TimeoutError:
            raise TimeoutError(f"no scheduler within {self._options.grace_seconds:g} s: {self._trouble}") from None
        return was_live

    async def _abort_elsewhere(self, request_id: str) -> bool | None:
        """Whether a request was live; None: the scheduler went before it said so."""
        await self._in_session.wait()
        assert self._stream is not None
        stub = scheduler_pb2_grpc.SchedulerServiceStub(self._stream.channel)
        try:
            answer = await stub.Abort(pb.AbortRequest(request_id=request_id))
        except grpc.aio.AioRpcError as error:
            _log.info("abort is tried again", extra={"reason": error.details()})
            await asyncio.sleep(self._options.min_pause_seconds)
            return None
        return bool(answer.was_live)

    def _command(self, is_to_be_sent: bool, command: pb.Command) -> None:
        if is_to_be_sent:
            self._commands.append(command)
            self._writable.set()
        self._deliver_ended()

    def _deliver_ended(self) -> None:
        ended = self._requests.pop_ended()
        if ended.finished or ended.failed:
            self._deliver_soon(ended)

    def _deliver_soon(self, outputs: Outputs) -> None:
        """Deliver in a turn of its own: what calls do with their output is no concern of the session."""
        asyncio.get_running_loop().call_soon(self._deliver, outputs)

    # Sessions

    async def _run(self) -> None:
        num_unproven = 0
        while True:
            stream = await self._dial()
            began_at = self._clock()
            try:
                await self._hold_session(stream)
            except (SessionLost, FrameError) as error:
                self._lose_session(stream.address, error)
            finally:
                await stream.close()
            num_unproven = 0 if self._clock() - began_at > _PROVEN_SECONDS else num_unproven + 1
            await asyncio.sleep(self._options.pause_seconds(num_unproven / 10) if num_unproven > 1 else 0.0)

    async def _dial(self) -> SessionStream:
        """Dial all addresses in turn, the last one first, until one welcomes us."""
        addresses = self._options.addresses
        while True:
            for _ in addresses:
                address = addresses[self._next_address % len(addresses)]
                try:
                    stream, welcome = await open_stream(address, self._options)
                except SessionLost as error:
                    self._note(address, error)
                    self._next_address += 1
                else:
                    facts = {"address": address, "scheduler": welcome.scheduler_id, "epoch": welcome.epoch, "requests": len(self._requests)}
                    _log.info("in session with the scheduler", extra=facts)
                    return stream
            await asyncio.sleep(self._options.pause_seconds(self._clock() - self._outage_since))

    async def _hold_session(self, stream: SessionStream) -> None:
        """Read and write to the end of the session; raises SessionLost and FrameError."""
        self._stream = stream
        self._commands = [commands.DRAIN] if self._is_draining else []
        self._num_silent_beats = 0
        self._troubles.clear()
        self._silent.clear()
        self._is_beat_due = True
        self._metrics_due = 0.0
        self._writable.set()
        self._in_session.set()
        tasks = [asyncio.create_task(work) for work in (self._read(stream), self._write(stream), self._wait_for_silence())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _lose_session(self, address: str, error: Exception) -> None:
        if not (isinstance(error, SessionLost) and error.may_be_back):
            self._next_address += 1
        self._stream = None
        self._in_session.clear()
        self._outage_since = self._clock()
        self._snapshot_time = -math.inf
        self._commands = []
        self._note(address, error)
        self._requests.lose_session(self._clock())
        self._deliver_ended()

    async def _wait_for_silence(self) -> None:
        await self._silent.wait()
        raise SessionLost(f"the scheduler was silent for {self._options.max_silence_seconds:g} s")

    async def _watch(self) -> None:
        """Beat in a session, and give up requests that have been without one for too long.

        Silence is counted in our own beats: while this process was stopped nobody could be heard.
        """
        options = self._options
        while True:
            await asyncio.sleep(options.heartbeat_seconds)
            if self._stream is None:
                self._requests.fail_overdue(self._clock(), options.grace_seconds, self._trouble)
                self._deliver_ended()
                continue
            self._num_silent_beats += 1
            if self._num_silent_beats * options.heartbeat_seconds > options.max_silence_seconds:
                self._silent.set()
            self._is_beat_due = True
            self._writable.set()

    # Frames

    async def _write(self, stream: SessionStream) -> None:
        while True:
            await self._writable.wait()
            self._writable.clear()
            while (frame := self._next_frame()) is not None:
                if not await stream.write(frame):
                    return

    def _next_frame(self) -> pb.ConnectRequest | None:
        if self._is_beat_due:
            self._is_beat_due = False
            return pb.ConnectRequest(state=self._state())
        coming, self._commands = self._commands, []
        num_bytes = 0
        while num_bytes < _MAX_SUBMISSION_BYTES and (live := self._requests.pop_unsent()):
            command = commands.submission(live, self._clock())
            num_bytes += command.ByteSize()
            coming.append(command)
            if live.is_held:
                coming.append(pb.Command(hold=live.request.request_id))
        return pb.ConnectRequest(commands=pb.Commands(commands=coming)) if coming else None

    def _state(self) -> pb.FrontEndState:
        numbers, now = self._numbers(), self._clock()
        state = pb.FrontEndState(
            num_calls=numbers.num_calls, num_held_back=numbers.num_held_back, num_unwritten_bytes=numbers.num_unwritten_bytes
        )
        if self._metrics and now >= self._metrics_due:
            self._metrics_due = now + self._options.metrics_seconds
            state.metrics = self._metrics()
        return state

    async def _read(self, stream: SessionStream) -> None:
        while True:
            frame = await stream.read()
            self._num_silent_beats = 0
            match frame.WhichOneof("frame"):
                case "passes":
                    for message in frame.passes.passes:
                        self._take_in(message)
                case "state":
                    self._snapshot, self._snapshot_time = read_state(frame.state), self._clock()
                case "drain":
                    self._drained()
                case "farewell":
                    raise SessionLost("the scheduler goes")
                case None if is_unknown_kind(frame):
                    _log.debug("frame of an unknown kind ignored")
                case kind:
                    raise FrameError(f"frame: {kind or 'not set'}; after Welcome it is passes, state, drain or farewell")

    def _take_in(self, message: pb.Outputs) -> None:
        outputs = read_outputs(message, self._options.vocab_size, self._requests.prompt_of)
        self._deliver_soon(self._requests.take_in(outputs, self._clock()))

    # Troubles

    def _note(self, address: str, error: Exception) -> None:
        """Log why there is no session with a scheduler, but not again while the reason stays the same."""
        self._trouble = f"{address}: {error}"
        if self._troubles.get(address) != str(error):
            _log.warning("no session with the scheduler", extra={"address": address, "reason": str(error)})
        self._troubles[address] = str(error)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self.failed.done():
            _log.error("the link to the scheduler failed", exc_info=error)
            self.failed.set_result(error)
