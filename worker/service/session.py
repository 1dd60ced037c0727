"""Who owns the worker, which steps it has taken in, and which results it still owes."""

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

ResultT = TypeVar("ResultT")


class LeaseHeldError(Exception):
    """Another control plane holds the worker; the message names it and the time left, which is `seconds`."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class StepOrderError(ValueError):
    """A step does not follow from the ones before; the message names field, value and limit."""


class SessionState(enum.Enum):
    """Whether a worker has an owner, and whether its stream is open; the values are those of the metric."""

    FREE = "free"  # no owner, nothing held
    CONNECTED = "connected"  # an owner with an open stream
    DETACHED = "detached"  # an owner whose stream broke and whose lease still runs


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What a Hello asks for."""

    control_plane_id: str
    takeover: bool = False
    resume_incarnation: str = ""
    acked_step_id: int = 0


@dataclass(frozen=True, slots=True)
class Grant(Generic[ResultT]):
    """An accepted Hello."""

    stream: int  # identifies the stream in later calls
    epoch: int
    resumed: bool
    last_step_id: int
    unseen: tuple[ResultT, ...]  # to be sent again, oldest first


class Session(Generic[ResultT]):
    """Owner, lease, step ids and results of a worker. Pure logic; one task owns it and passes the time in (monotonic seconds).

                 open                        close
          FREE ---------> CONNECTED ------------------> DETACHED
            ^                 |  ^ open (same; another     |
            |                 |  |       half a lease later)
            |   farewell, or  |  +-------------------------+
            +-- lease ran out-+--------- lease ran out ----+

    A connection that broke is kept free for its owner for half a lease, which is as long as the owner itself tries to come back.

    Everything that the worker holds for its owner belongs to an era. A new era starts whenever it is forgotten: by a Hello that does not
    resume, by a Reset, by a farewell, or when the lease has run out. Results of an earlier era are dropped.
    """

    def __init__(self, incarnation: str, lease_seconds: float, max_steps_in_flight: int) -> None:
        self._incarnation = incarnation
        self._lease_seconds = lease_seconds
        self._max_steps_in_flight = max_steps_in_flight
        self._owner = ""
        self._held = False
        self._stream = 0  # 0: none is open
        self._num_streams = 0
        self._last_heard = 0.0
        self._kept_until = 0.0  # for the owner, once its stream has broken
        self._era_is_new = True
        self._reset_is_last = False
        self._answered_step_id = 0
        self._acked_step_id = 0
        self._history: deque[tuple[int, ResultT]] = deque()
        self._lanes: set[int] = set()
        self.epoch = 0
        self.era = 0
        self.last_step_id = 0

    @property
    def state(self) -> SessionState:
        """Whether there is an owner, and whether its stream is open."""
        if not self._held:
            return SessionState.FREE
        return SessionState.CONNECTED if self._stream else SessionState.DETACHED

    @property
    def owner(self) -> str:
        """The control plane that the worker belongs to; empty when there is none."""
        return self._owner if self._held else ""

    @property
    def num_lanes(self) -> int:
        """Lanes that the owner has taken and not released."""
        return len(self._lanes)

    @property
    def num_steps_in_flight(self) -> int:
        """Steps taken in and not yet answered."""
        return self.last_step_id - self._answered_step_id

    def open(self, request: SessionRequest, now: float) -> Grant[ResultT]:
        """Accept a Hello, which replaces any other stream; raises LeaseHeldError when another control plane holds the worker."""
        self.expire(now)
        same = request.control_plane_id == self._owner
        if not same and not request.takeover:
            self._refuse_others(now)
        resumed = same and self._can_resume(request)
        if not same:
            self.epoch += 1
        if resumed:
            self._trim(request.acked_step_id)
        else:
            self.last_step_id = 0
            self._forget()
        self._owner, self._held, self._last_heard = request.control_plane_id, True, now
        self._num_streams += 1
        self._stream = self._num_streams
        return Grant(self._stream, self.epoch, resumed, self.last_step_id, tuple(result for _, result in self._history))

    def close(self, stream: int, now: float, is_farewell: bool = False) -> None:
        """Note that `stream` ended; what was taken in goes on until the lease runs out. After a farewell it is forgotten at once."""
        if stream != self._stream:
            return
        self._stream, self._kept_until = 0, now + self._lease_seconds / 2
        if is_farewell:
            self._free()

    def renew_lease(self, now: float) -> None:
        """Let the lease begin anew: the owner has sent something."""
        self._last_heard = now

    def expire(self, now: float) -> bool:
        """Forget the owner and everything it holds if its lease has run out; returns whether it just did."""
        if not self._held or now - self._last_heard < self._lease_seconds:
            return False
        self._free()
        return True

    def is_orphaned(self, now: float) -> bool:
        """Whether there was an owner, nothing was heard of it for a whole lease, and nobody has come since."""
        return bool(self._owner) and not self._held and now - self._last_heard >= self._lease_seconds

    def accept_step(self, step_id: int, acked_step_id: int, released: Iterable[int], admitted: Iterable[int]) -> None:
        """Accept a step, with the lanes it releases and admits; raises StepOrderError before any effect.

        The first step of an era may leave a gap, as nothing can be missing: it counts as if the step before it was acknowledged.
        """
        self._check_order(step_id, acked_step_id)
        if self._era_is_new:
            self._answered_step_id = acked_step_id = step_id - 1
            self._era_is_new = False
        self._trim(acked_step_id)
        self.last_step_id = step_id
        self._lanes.difference_update(released)
        self._lanes.update(admitted)

    def finish_step(self, era: int, step_id: int, result: ResultT) -> bool:
        """Keep the result of a step; returns False, having dropped it, when its era is over."""
        if era != self.era:
            return False
        assert step_id == self._answered_step_id + 1 <= self.last_step_id, (step_id, self._answered_step_id, self.last_step_id)
        self._answered_step_id = step_id
        self._history.append((step_id, result))
        return True

    def reset(self) -> None:
        """Forget lanes, pages and results as the owner asked; step ids go on."""
        self._forget()
        self._reset_is_last = True

    def _refuse_others(self, now: float) -> None:
        if self._stream:
            left = self._last_heard + self._lease_seconds - now
            raise LeaseHeldError(f"the worker is held by control plane {self._owner}, whose lease runs for another {left:.1f} s", left)
        if self._held and now < self._kept_until:
            left = min(self._kept_until, self._last_heard + self._lease_seconds) - now
            raise LeaseHeldError(
                f"the worker is kept for control plane {self._owner}, whose connection broke, for another {left:.1f} s", left
            )

    def _check_order(self, step_id: int, acked_step_id: int) -> None:
        if self._era_is_new:
            if step_id <= self.last_step_id:
                raise StepOrderError(f"step.step_id: {step_id} is not above {self.last_step_id}, the last step")
            return
        if step_id != self.last_step_id + 1:
            raise StepOrderError(f"step.step_id: {step_id}, the next step is {self.last_step_id + 1}")
        if acked_step_id > self._answered_step_id:
            raise StepOrderError(f"step.acked_step_id: {acked_step_id} is above {self._answered_step_id}, the last step answered")
        in_flight = step_id - max(acked_step_id, self._acked_step_id)
        if in_flight > self._max_steps_in_flight:
            raise StepOrderError(f"step.step_id: {step_id} makes {in_flight} steps in flight, limit {self._max_steps_in_flight}")

    def _can_resume(self, request: SessionRequest) -> bool:
        # After a Reset whose ResetDone may be lost, a fresh session says the same.
        return (
            self._held
            and not (self._reset_is_last and self._era_is_new)
            and request.resume_incarnation == self._incarnation
            and self._acked_step_id <= request.acked_step_id <= self._answered_step_id
        )

    def _trim(self, acked_step_id: int) -> None:
        self._acked_step_id = max(self._acked_step_id, acked_step_id)
        while self._history and self._history[0][0] <= self._acked_step_id:
            self._history.popleft()

    def _free(self) -> None:
        self._forget()
        self._held, self._stream = False, 0

    def _forget(self) -> None:
        self.era += 1
        self._answered_step_id = self._acked_step_id = self.last_step_id
        self._history.clear()
        self._lanes.clear()
        self._era_is_new = True
        self._reset_is_last = False
