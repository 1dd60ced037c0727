"""The link to one worker: dials, keeps a session alive over broken streams, and starts over when it is lost."""

import asyncio
import contextlib
import enum
import logging
import math
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Protocol

from control_plane.edge.worker_link.frames.requests import farewell_frame
from control_plane.edge.worker_link.frames.welcome import describe, num_pages_of
from control_plane.edge.worker_link.options import LinkOptions
from control_plane.edge.worker_link.session import LinkContext, WorkerSession
from control_plane.edge.worker_link.stream import FrameStream, LinkBroken, PortAnswer, open_stream
from control_plane.edge.worker_link.watchdog import FaultBudget, FaultBudgetSpent, Watchdog
from pypto_serving.process.trouble_log import TroubleLog
from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.contract import FEATURES, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION
from pypto_serving.worker.v1 import worker_pb2

_log = logging.getLogger(__name__)

_FAREWELL_SECONDS = 0.5

#: Troubles that mean that nobody listens there.
_NOBODY = frozenset(answer.value for answer in PortAnswer)


class LinkPhase(enum.Enum):
    """Where a link stands."""

    CONNECTING = "connecting"
    REFUSED = "refused"
    IN_SESSION = "in_session"
    RESUMING = "resuming"


@dataclass(frozen=True, slots=True)
class LinkState:
    """A link as operators see it."""

    address: str
    phase: LinkPhase
    trouble: str  # what is wrong; empty in session


class Peers(Protocol):
    """The other links of a control plane."""

    def address_in_session(self, incarnation: str) -> str | None:
        """The address at which a worker is in session."""

    def check_pages(self, address: str, num_pages: int) -> None:
        """Raise LinkBroken when a worker's pages are too many beside those in session."""

    def check_weights(self, address: str, digest: str) -> None:
        """Raise LinkBroken when those in session have other weights than a worker."""


class WorkerLink:
    """One task per worker, on the engine's event loop: `run`.

    connecting --Welcome--> in session --stream broke--> resuming --Welcome, resumed--> in session
        ^                                                   |
        +--lost: refused, another incarnation, hang, lease--+
    """

    def __init__(self, address: str, options: LinkOptions, context: LinkContext, peers: Peers) -> None:
        self.address = address
        self.incarnation = ""  # that of the last Welcome or announcement
        self._options = options
        self._context = context
        self._peers = peers
        self.weights_digest = ""  # of the worker in session
        self._session: WorkerSession | None = None
        self._stream: FrameStream | None = None
        self._stuck: tuple[str, int] | None = None  # incarnation and progress of a worker that hung
        self._trouble = ""
        self._trouble_log = TroubleLog(_log, context.clock)
        self._is_refused = False
        self._retry_seconds = math.inf  # advice that came with a refusal
        self._is_leaving = False
        self._was_in_session = False
        self._num_failed_dials = 0
        self._num_unproven_streams = 0
        self._faults = FaultBudget("")
        self._resume_by = 0.0  # when a session without a stream is given up
        self._was_announced = asyncio.Event()

    @property
    def session(self) -> WorkerSession | None:
        """The session, also while it waits for a new stream."""
        return self._session

    def state(self) -> LinkState:
        """Snapshot of the link."""
        if self._session and self._session.is_joined:
            phase = LinkPhase.IN_SESSION if self._stream else LinkPhase.RESUMING
        else:
            phase = LinkPhase.REFUSED if self._is_refused else LinkPhase.CONNECTING
        return LinkState(self.address, phase, self._trouble)

    def announced(self, incarnation: str) -> None:
        """The worker was heard of: cut the pause before the next dial short if it is news."""
        if self._session is None and incarnation != self.incarnation:
            self.incarnation = incarnation
            self._was_announced.set()

    async def run(self) -> None:
        """Keep a session with the worker, until cancelled or after `leave`."""
        while not self._is_leaving:
            self._was_announced.clear()  # what is heard during the dial counts
            try:
                stream, welcome = await self._dial()
            except LinkBroken as error:
                self._note_failed_dial(error)
            else:
                await self._hold_session(stream, welcome)
            await self._pause()

    async def leave(self) -> None:
        """Let the worker go, so that it keeps itself free for us no longer; the engine is not told."""
        self._is_leaving = True
        if self._stream is not None and self._session is not None:
            self._stream.send(farewell_frame(self._session.description.epoch))
            await self._stream.finish(_FAREWELL_SECONDS)

    def lose(self, reason: str) -> None:
        """Give the session up, if there is one."""
        session, self._session = self._session, None
        if session is None:
            return
        if session.is_joined:
            _log.log(logging.INFO if session.is_draining else logging.WARNING, "lost: %s", reason, extra={"worker": self.address})
            self._trouble_log.told(reason)
            self._trouble = reason
        else:
            self._note(reason)
        if session.watchdog.is_stalled:
            self._stuck = (session.description.incarnation, session.watchdog.progress)
        elif session.is_joined:
            self._stuck = None
        session.end(reason)

    async def _dial(self) -> tuple[FrameStream, worker_pb2.Welcome]:
        self._require_alone(self.incarnation)
        session = self._session
        hello = worker_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            min_protocol_version=MIN_PROTOCOL_VERSION,
            features=FEATURES,
            control_plane_id=self._options.control_plane_id,
            # Only once: two control planes that both take over would do so for ever.
            takeover=self._options.takeover and not self._was_in_session,
            resume_incarnation=session.description.incarnation if session else "",
            acked_step_id=session.acked_step_id if session else 0,
            model_fingerprint=self._options.model_fingerprint,
            model_name=self._options.model_name,
            worker_address=self.address,
        )
        if session is None:
            return await open_stream(self.address, hello, self._options)
        try:  # a dial that hangs must not outlive the session
            async with asyncio.timeout(self._resume_by - self._context.clock()):
                return await open_stream(self.address, hello, self._options)
        except TimeoutError:
            raise LinkBroken(f"silent for {session.watchdog.max_silence_seconds:.1f} s", is_final=True) from None

    def _require_alone(self, incarnation: str) -> None:
        other = self._peers.address_in_session(incarnation)
        if other is not None and other != self.address:
            raise LinkBroken(f"the same worker is in session as {other}", is_refusal=True)

    async def _hold_session(self, stream: FrameStream, welcome: worker_pb2.Welcome) -> None:
        """Hold the session over one stream, to its end."""
        opened_at = self._context.clock()
        acked_step_id = 0
        try:
            session = self._resume_or_open(stream, welcome)
            acked_step_id = session.acked_step_id
            self._stream = stream
            await _first_to_fail(self._read(stream, session), stream.write(), self._watch(stream, session))
        except LinkBroken as error:
            if not self._is_leaving:
                self._note_broken_stream(error, opened_at, acked_step_id)
        except FrameError as error:
            self._faults.exhaust()
            self._note_failed_dial(LinkBroken(f"protocol error: {error}", is_refusal=True))
        except FaultBudgetSpent as error:
            self._note_failed_dial(LinkBroken(str(error), is_refusal=True))
        finally:
            self._stream = None
            if self._session:
                watchdog = self._session.watchdog
                self._resume_by = self._context.clock() + watchdog.max_silence_seconds - watchdog.silence_seconds
                self._session.detach()
            await stream.close()

    def _resume_or_open(self, stream: FrameStream, welcome: worker_pb2.Welcome) -> WorkerSession:
        """Resume the session, or lose it and open another; raises FrameError and LinkBroken."""
        session = self._session
        if session and session.can_resume(welcome):
            _log.info("session resumed", extra={"worker": self.address})
            session.resume(stream, welcome)
        else:
            self.lose("the worker started again" if welcome.incarnation != self.incarnation else "the worker let go of the session")
            session = self._open_session(stream, welcome)
        self._num_failed_dials = 0
        self._trouble = "" if session.is_joined else "hung, and has not moved since"
        self._trouble_log.reached()
        self._is_refused = False
        return session

    def _open_session(self, stream: FrameStream, welcome: worker_pb2.Welcome) -> WorkerSession:
        if welcome.incarnation != self._faults.incarnation:
            self._faults = FaultBudget(welcome.incarnation)
        self.incarnation = welcome.incarnation
        self._require_alone(welcome.incarnation)
        if welcome.model_fingerprint != self._options.model_fingerprint:
            raise FrameError(f"model_fingerprint is {welcome.model_fingerprint!r}, ours is {self._options.model_fingerprint!r}")
        description = describe(self.address, welcome)
        self._peers.check_pages(self.address, num_pages_of(description))
        self.weights_digest = ""
        self._check_weights(welcome.weights_digest)
        watchdog = Watchdog(description.lease_seconds, self._options.min_hang_seconds, self._options.max_hang_seconds)
        session = WorkerSession(description, watchdog, self._faults, self._context)
        self._session = session
        self._was_in_session = True
        stuck_incarnation, stuck_at = self._stuck or ("", None)
        session.open(stream, stuck_at if stuck_incarnation == welcome.incarnation else None)
        fields = {"worker": self.address, "incarnation": welcome.incarnation, "epoch": welcome.epoch, "numerics_id": welcome.numerics_id}
        _log.info("session opened", extra=fields)
        return session

    async def _read(self, stream: FrameStream, session: WorkerSession) -> None:
        while True:
            frame = await stream.receive()
            self._check_weights(frame.progress.weights_digest)
            session.receive(frame)

    def _check_weights(self, digest: str) -> None:
        """Note what the weights of the worker are; raises LinkBroken when others in session have different ones."""
        if digest and digest != self.weights_digest:
            self._peers.check_weights(self.address, digest)
            self.weights_digest = digest

    async def _watch(self, stream: FrameStream, session: WorkerSession) -> None:
        """Beat, and raise LinkBroken when the worker does not move."""
        clock = self._context.clock
        description = session.description
        ticked_at = beat_at = clock()
        while True:
            await asyncio.sleep(session.watchdog.tick_seconds)
            now = clock()
            reason = session.watchdog.tick(now - ticked_at, session.has_work)
            self._context.metrics.worker_silence(self.address, session.watchdog.silence_seconds)
            if reason:
                raise LinkBroken(reason, is_final=True)
            if now - beat_at >= description.lease_seconds / 4 and not stream.is_backed_up:
                session.beat()
                beat_at = now
            ticked_at = now

    def _note_broken_stream(self, error: LinkBroken, opened_at: float, acked_step_id: int) -> None:
        session = self._session
        if session is None:
            self._note_failed_dial(error)
            return
        lived_seconds = self._context.clock() - opened_at
        is_proven = session.acked_step_id > acked_step_id or (not session.has_work and lived_seconds >= 1.0)
        self._num_unproven_streams = 0 if is_proven else self._num_unproven_streams + 1
        self._is_refused, self._retry_seconds = error.is_refusal, error.retry_seconds
        if error.is_final or self._num_unproven_streams > self._options.max_unproven_streams:
            self.lose(str(error))
        else:
            self._note(f"stream broke: {error}")

    def _note_failed_dial(self, error: LinkBroken) -> None:
        if self._session and error.is_final:
            self.lose(str(error))
        self._num_failed_dials += 1
        _log.debug("dial failed", extra={"worker": self.address, "reason": str(error), "failed_dials": self._num_failed_dials})
        self._is_refused, self._retry_seconds = error.is_refusal, error.retry_seconds
        self._note(str(error))

    def _note(self, trouble: str) -> None:
        if self._session and self._session.is_draining:  # it has said that it goes
            _log.info("%s", trouble, extra={"worker": self.address})
            self._trouble_log.told(trouble)
        self._trouble_log.note(trouble, is_missing=trouble in _NOBODY, worker=self.address)
        self._trouble = trouble

    async def _pause(self) -> None:
        backoff = self._options.refused if self._is_refused else self._options.redial
        pause = backoff.pause(max(self._num_failed_dials, self._num_unproven_streams - 1, self._faults.num_exhaustions))
        pause = min(pause, self._retry_seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._was_announced.wait()


async def _first_to_fail(*coroutines: Coroutine[None, None, None]) -> None:
    """Run all until one raises; end the others and raise that."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
