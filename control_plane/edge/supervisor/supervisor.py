"""Starts the processes of a control plane, keeps them alive, and ends them in order."""

import contextlib
import enum
import logging
import selectors
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from control_plane.edge.supervisor.child import Child

_log = logging.getLogger(__name__)

_TURN_SECONDS = 1.0  # at most; what happens wakes the loop
_KILL_SECONDS = 10.0  # for an end that was asked for, beside the time of a drain


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """How long a process may say nothing before it is killed."""

    serving_seconds: float = 10.0
    starting_seconds: float = 120.0  # it reads the model meanwhile, which takes seconds


_LIMITS = SilenceLimits()


class _Phase(enum.IntEnum):
    """Only ever rises."""

    STARTING = 0  # the scheduler, then a front end, then the others: what is wrong is said once
    SERVING = 1
    DRAINING = 2  # front ends end what they have begun
    STOPPING = 3  # the scheduler ends
    ENDED = 4


class Supervisor:
    """Belongs to the main thread, which also takes the signals."""

    def __init__(self, scheduler: Child, front_ends: Sequence[Child], drain_seconds: float, limits: SilenceLimits = _LIMITS) -> None:
        self._scheduler = scheduler
        self._front_ends = list(front_ends)
        self._drain_seconds = drain_seconds
        self._limits = limits
        self._selector = selectors.DefaultSelector()
        self._phase = _Phase.STARTING
        self._exit_code = 0
        self._is_urgent = False
        self._kill_at: float | None = None

    def run(self) -> int:
        """Run until a signal, or until something cannot be started; returns the exit code."""
        started_at = turned_at = time.monotonic()
        with self._signals():
            self._start(self._scheduler)
            while self._phase < _Phase.ENDED:
                for key, _ in self._selector.select(self._timeout()):
                    key.data()
                passed, turned_at = time.monotonic() - turned_at, time.monotonic()
                self._kill_silent(min(passed, _TURN_SECONDS))  # while we were stopped ourselves nobody could be heard
                self._reap()
                self._start_due()
                if self._phase is _Phase.STARTING and all(child.is_serving for child in self._children):
                    self._phase = _Phase.SERVING
                    self._log_serving(time.monotonic() - started_at)
                self._advance()
        return self._exit_code

    @property
    def _children(self) -> list[Child]:
        return [self._scheduler, *self._front_ends]

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals wake the loop, which handles them in turn with all the rest."""
        ours, pythons = socket.socketpair()
        with ours, pythons, self._selector:
            ours.setblocking(False)
            pythons.setblocking(False)
            self._selector.register(ours, selectors.EVENT_READ, lambda: self._handle_signals(ours.recv(4096)))
            signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, lambda *_: None)
            try:
                yield
            finally:
                signal.set_wakeup_fd(-1)

    def _handle_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._stop(urgently=self._phase >= _Phase.DRAINING)
            elif number == signal.SIGHUP:
                self._send(signal.SIGHUP, self._children)

    def _stop(self, urgently: bool) -> None:
        """Drain, or end at once."""
        if self._phase < _Phase.DRAINING:
            if not self._exit_code:
                _log.info("draining", extra={"drain_seconds": self._drain_seconds})
            self._phase = _Phase.DRAINING
            self._kill_at = time.monotonic() + self._drain_seconds + _KILL_SECONDS
            for child in self._front_ends:
                child.due = None
                child.send(signal.SIGTERM)
        if urgently and not self._is_urgent:
            self._is_urgent = True
            self._kill_at = time.monotonic() + _KILL_SECONDS
            self._send(signal.SIGTERM, self._children)  # to front ends the second one

    def _kill_silent(self, seconds: float) -> None:
        """Time has passed. A process that is frozen, or whose loop hangs, is worth no more than a dead one."""
        for child in self._children:
            child.silent_seconds += seconds
            limit = self._limits.serving_seconds if child.is_serving else self._limits.starting_seconds
            if child.is_alive and child.silent_seconds > limit:
                _log.error("a process is silent and is killed", extra={"part": child.name, "seconds": round(child.silent_seconds, 1)})
                child.silent_seconds = 0.0
                child.send(signal.SIGKILL)

    def _reap(self) -> None:
        for child in self._children:
            if not child.is_alive:
                continue
            output = child.output
            if child.reap():
                self._selector.unregister(output)
                self._note_end(child)

    def _note_end(self, child: Child) -> None:
        if self._phase >= _Phase.DRAINING and (child is not self._scheduler or self._is_urgent or self._phase >= _Phase.STOPPING):
            child.due = None  # that is its end
        elif child.never_starts:
            self._give_up(child)
        else:
            _log.error("a process died and is started again", extra={"part": child.name, "exit_code": child.exit_code})

    def _give_up(self, child: Child) -> None:
        """The child has said what is wrong, in one line on standard error, unless it was killed."""
        child.due = None
        assert child.exit_code is not None
        if child.exit_code <= 0:
            _log.error("a process ended while it started", extra={"part": child.name, "exit_code": child.exit_code})
        self._exit_code = self._exit_code or max(child.exit_code, 0) or 1
        self._stop(urgently=self._phase is _Phase.STARTING)

    def _start_due(self) -> None:
        if self._phase is _Phase.STARTING and self._scheduler.served:
            first, *others = self._front_ends
            for child in others if first.served else [first]:
                if child.exit_code is None and not child.is_alive:
                    self._start(child)
        for child in self._children:
            if child.due is not None and child.due <= time.monotonic():
                self._start(child)

    def _start(self, child: Child) -> None:
        child.start()
        self._selector.register(child.output, selectors.EVENT_READ, lambda: self._read(child))

    def _read(self, child: Child) -> None:
        for said in child.read():
            if "draining" in said:
                self._stop(urgently=False)

    def _advance(self) -> None:
        """Go on with an end that was asked for."""
        if self._phase is _Phase.DRAINING and not any(child.is_alive for child in self._front_ends):
            self._phase = _Phase.STOPPING
            self._kill_at = time.monotonic() + _KILL_SECONDS
            self._scheduler.due = None
            self._send(signal.SIGTERM, [self._scheduler])
        if self._phase is _Phase.STOPPING and not self._scheduler.is_alive:
            self._phase = _Phase.ENDED
            if not self._exit_code:
                _log.info("stopped")
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self._send(signal.SIGKILL, self._children if self._is_urgent or self._phase is _Phase.STOPPING else self._front_ends)

    def _send(self, number: signal.Signals, children: Sequence[Child]) -> None:
        for child in children:
            child.send(number)

    def _timeout(self) -> float:
        times = [child.due for child in self._children if child.due is not None] + ([self._kill_at] if self._kill_at else [])
        return max(0.0, min([_TURN_SECONDS, *(moment - time.monotonic() for moment in times)]))

    def _log_serving(self, seconds: float) -> None:
        extra = {name: value for child in self._children for name, value in child.served.items() if name != "ports"}
        _log.info("serving", extra={**extra, "frontends": len(self._front_ends), "seconds": round(seconds, 2)})
