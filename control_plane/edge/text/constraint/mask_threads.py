"""Masks are computed on threads, as soon as the token before them is known: a hard grammar takes tens of milliseconds for one."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import thread_time
from weakref import ref

from control_plane.core.constraint import Constraint

#: A request whose constraint has taken so much CPU time for a token and its mask no longer shares threads with those that take less.
_SLOW_SECONDS = 0.002

#: CPU time after which it is another's turn to begin.
_SLICE_SECONDS = 0.01


@dataclass(slots=True)
class _Cost:
    """What is known of a request's constraint; its choices share it."""

    is_slow: bool = False


class MaskThreads:
    """Implements the engine's ConstraintMaker.

    Two threads compile grammars and catch up with tokens generated before, in turns; two are for masks of constraints that are fast, two
    for those of others. They call `on_ready` when a mask is there.
    """

    def __init__(self, compile: Callable[[str, int], Sequence[Constraint]], on_ready: Callable[[], object]) -> None:
        """`compile` makes as many constraints as it is told, which have taken no token; it is called on a thread."""
        self._compile = compile
        self._on_ready = on_ready
        self._beginners = ThreadPoolExecutor(2, thread_name_prefix="begin-mask")
        self._fast = ThreadPoolExecutor(2, thread_name_prefix="mask")
        self._slow = ThreadPoolExecutor(2, thread_name_prefix="slow-mask")

    def close(self) -> None:
        """End the threads."""
        for threads in (self._beginners, self._fast, self._slow):
            threads.shutdown(wait=False, cancel_futures=True)

    def begin(self, grammar: str, generated: Sequence[Sequence[int]]) -> "list[ThreadedConstraint]":
        """One constraint for each choice of a request, which has taken the tokens that the choice has generated before."""
        cost = _Cost()
        begun = [ThreadedConstraint(self, cost) for _ in generated]
        self._beginners.submit(self._begin, grammar, [ref(threaded) for threaded in begun], generated)
        return begun

    def _begin(self, grammar: str, begun: "Sequence[ref[ThreadedConstraint]]", generated: Sequence[Sequence[int]]) -> None:
        try:
            constraints = self._compile(grammar, len(begun))
        except BaseException as error:  # belongs to the request, not to the thread; a panic of the library is no Exception
            for reference in begun:
                if threaded := reference():
                    threaded.fail(error)
            self._on_ready()
            return
        for reference, constraint, token_ids in zip(begun, constraints, generated, strict=True):
            self._beginners.submit(self._catch_up, reference, constraint, iter(token_ids))

    def _catch_up(self, reference: "ref[ThreadedConstraint]", constraint: Constraint, token_ids: Iterator[int]) -> None:
        """Push tokens for a slice of time; after the last one the constraint is ready for the first mask."""
        threaded, end = reference(), thread_time() + _SLICE_SECONDS
        if threaded is None:
            return  # its request has ended
        try:
            for token_id in token_ids:
                constraint.push(token_id)
                if thread_time() >= end:
                    self._beginners.submit(self._catch_up, reference, constraint, token_ids)
                    return
        except BaseException as error:
            threaded.fail(error)
            self._on_ready()
        else:
            threaded.start(constraint)

    def run_now(self, work: Callable[[], None], cost: _Cost) -> None:
        """Do the work of one token on the calling thread."""
        start = thread_time()
        work()
        cost.is_slow = cost.is_slow or thread_time() - start > _SLOW_SECONDS
        self._on_ready()

    def run(self, work: Callable[[], None], cost: _Cost) -> None:
        """Do the work of one token."""
        if cost.is_slow:
            self._slow.submit(self.run_now, work, cost)
        else:
            self._fast.submit(self._run_if_fast, work, cost)

    def _run_if_fast(self, work: Callable[[], None], cost: _Cost) -> None:
        if cost.is_slow:  # by now, as another choice has shown
            self._slow.submit(self.run_now, work, cost)
        else:
            self.run_now(work, cost)


class ThreadedConstraint:
    """Implements `control_plane.core.constraint.Constraint` for the engine's thread, which never computes or waits.

    Each token is pushed, and the mask after it computed, on a thread; no token comes before that is done, so that one thread at a time has
    the constraint. What goes wrong there is raised by `mask`.
    """

    __slots__ = ("__weakref__", "_constraint", "_cost", "_mask", "_threads")

    def __init__(self, threads: MaskThreads, cost: _Cost) -> None:
        self._threads = threads
        self._cost = cost
        self._constraint: Constraint | None = None
        self._mask: bytes | Exception | None = None

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

    def start(self, constraint: Constraint) -> None:
        """Go on with a constraint that has taken every token so far; computes its mask on the calling thread."""
        self._constraint = constraint
        self._threads.run_now(self._compute, self._cost)

    def fail(self, error: BaseException) -> None:
        """Let `mask` raise what went wrong, as an Exception."""
        self._mask = error if isinstance(error, Exception) else RuntimeError(str(error) or type(error).__name__)

    def _compute(self, token_id: int | None = None) -> None:
        assert self._constraint is not None
        try:
            if token_id is not None:
                self._constraint.push(token_id)
            self._mask = self._constraint.mask()
        except BaseException as error:
            self.fail(error)
