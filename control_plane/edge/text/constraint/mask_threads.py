"""Masks are computed on threads, as soon as the token before them is known: a hard grammar takes tens of milliseconds for one."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import thread_time

from control_plane.core.constraint import Constraint
from control_plane.engine.ports import GenerationRequest

_log = logging.getLogger(__name__)

#: A request whose constraint has taken so much CPU time for a token and its mask no longer shares threads with those that take less.
_SLOW_SECONDS = 0.002


@dataclass(slots=True)
class _Cost:
    """What is known of a request's constraint; its choices share it."""

    is_slow: bool = False


class MaskThreads:
    """Two threads for constraints that are fast, and two for others. They call `on_ready` when a mask is there."""

    def __init__(self, on_ready: Callable[[], object]) -> None:
        self._on_ready = on_ready
        self._fast = ThreadPoolExecutor(2, thread_name_prefix="mask")
        self._slow = ThreadPoolExecutor(2, thread_name_prefix="slow-mask")

    def close(self) -> None:
        """End the threads."""
        self._fast.shutdown(wait=False, cancel_futures=True)
        self._slow.shutdown(wait=False, cancel_futures=True)

    def attach(self, request: GenerationRequest) -> GenerationRequest:
        """The request with its constraints on these threads, which begin with the first masks at once."""
        if all(choice.constraint is None for choice in request.choices):
            return request
        cost = _Cost()
        choices = [
            choice if choice.constraint is None else replace(choice, constraint=ThreadedConstraint(choice.constraint, self, cost))
            for choice in request.choices
        ]
        return replace(request, choices=choices)

    def run(self, work: Callable[[], None], cost: _Cost) -> None:
        """Do the work of one token."""
        if cost.is_slow:
            self._slow.submit(self._timed, work, cost)
        else:
            self._fast.submit(self._run_if_fast, work, cost)

    def _run_if_fast(self, work: Callable[[], None], cost: _Cost) -> None:
        if cost.is_slow:  # by now, as another choice has shown
            self._slow.submit(self._timed, work, cost)
        else:
            self._timed(work, cost)

    def _timed(self, work: Callable[[], None], cost: _Cost) -> None:
        start = thread_time()
        work()
        cost.is_slow = cost.is_slow or thread_time() - start > _SLOW_SECONDS
        self._on_ready()


class ThreadedConstraint:
    """Implements `control_plane.core.constraint.Constraint` for the engine's thread, which never computes or waits.

    Each token is pushed, and the mask after it computed, on a thread; no token comes before that is done, so that one thread at a time has
    the constraint. What goes wrong there is raised by `mask`.
    """

    __slots__ = ("_constraint", "_cost", "_mask", "_threads")

    def __init__(self, constraint: Constraint, threads: MaskThreads, cost: _Cost) -> None:
        self._constraint = constraint
        self._threads = threads
        self._cost = cost
        self._mask: bytes | Exception | None = None
        if constraint.is_ready:
            self._mask = constraint.mask()
        else:
            threads.run(self._compute, cost)

    @property
    def is_ready(self) -> bool:
        """Whether the mask is there."""
        return self._mask is not None

    def push(self, token_id: int) -> None:
        """Begin with the next mask, which raises what is wrong with the token."""
        assert self._mask is not None, "a token comes before its mask"
        self._mask = None
        self._threads.run(lambda: self._compute(token_id), self._cost)

    def mask(self) -> bytes:
        """The mask that a thread has computed; raises what went wrong there."""
        assert self._mask is not None, "the mask is not known yet"
        if isinstance(self._mask, Exception):
            raise self._mask
        return self._mask

    def _compute(self, token_id: int | None = None) -> None:
        try:
            if token_id is not None:
                self._constraint.push(token_id)
            self._mask = self._constraint.mask()
        except Exception as error:  # belongs to the request, not to the thread
            self._mask = error
