"""When to try again, where, and when to give up. It performs no I/O."""

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from clients.errors import ResumeExhausted, ServerUnreachable, ServingError, invalid

_log = logging.getLogger(__name__)

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 1.0
_SHORTEST_TIMEOUT_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """How long to keep trying, in seconds: until a request has started, and from the moment its stream broke until it goes on."""

    connect_seconds: float = 5.0
    resume_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("connect_seconds", "resume_seconds"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and value >= 0):  # false for NaN
                raise invalid(f"{name}: {value!r} is not a number of seconds from 0")


class Targets:
    """Addresses of interchangeable servers; new requests begin at the one that answered last."""

    def __init__(self, targets: str | Sequence[str]) -> None:
        self.addresses = (targets,) if isinstance(targets, str) else tuple(targets)
        if not self.addresses:
            raise invalid("targets: at least one address is needed")
        for address in self.addresses:
            if not (address and address.isprintable()):
                raise invalid(f"targets: {address!r} is no address")
        self.preferred = 0


class Attempts:
    """The attempts at one request.

    A broken stream is tried again at once at the same address, then at the others in turn; after each round there is a pause that doubles
    up to a second. The limits start anew with every event that brings something new.
    """

    def __init__(
        self,
        targets: Targets,
        limits: RetryLimits,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        *,
        began_at: float | None = None,
    ) -> None:
        self._targets = targets
        self._limits = limits
        self._clock, self._jitter = clock, jitter
        self._index = targets.preferred
        self._num_failures = 0
        self._has_begun = False
        self._trouble_since: float | None = clock()
        self._timeout = timeout
        self._deadline = None if timeout is None else (clock() if began_at is None else began_at) + timeout

    @property
    def target(self) -> str:
        """Where to try now."""
        return self._targets.addresses[self._index]

    def remaining_seconds(self) -> float | None:
        """What is left of the timeout; None without one."""
        return None if self._deadline is None else max(self._deadline - self._clock(), _SHORTEST_TIMEOUT_SECONDS)

    def progressed(self) -> None:
        """Note that the current attempt brought something new."""
        if self._trouble_since is None:
            return  # nothing has happened since the last time
        if self._has_begun:
            _log.warning("resumed after %.1f s at %s", self._clock() - self._trouble_since, self.target)
        self._has_begun = True
        self._targets.preferred = self._index
        self._trouble_since = None
        self._num_failures = 0

    def delay_after(self, error: ServingError, num_tokens: int | None = None) -> float:
        """Seconds to wait before the next attempt. `num_tokens` have been received, None before the request started.

        Raises `error` itself when trying again is of no use, ServerUnreachable, ResumeExhausted or DEADLINE_EXCEEDED when time is up.
        """
        resuming = num_tokens is not None
        if error.code is grpc.StatusCode.DEADLINE_EXCEEDED and self._timeout is not None:
            raise timed_out(self._timeout, "the answer took longer", error) from error
        if not _is_passing(error, resuming, is_first=self._num_failures == 0):
            raise error
        failed_at, now = self.target, self._clock()
        delay = max(self._turn_to_next(now), error.retry_after_seconds or 0.0)
        limit = self._limits.resume_seconds if resuming else self._limits.connect_seconds
        assert self._trouble_since is not None
        if now + delay - self._trouble_since >= limit:
            if error.code is grpc.StatusCode.ALREADY_EXISTS:
                raise error
            raise self._give_up(error, num_tokens) from error
        if self._timeout is not None and self._deadline is not None and now + delay >= self._deadline:
            raise timed_out(self._timeout, f"last failure: {error.message}", error) from error
        self._log_failure(failed_at, error, is_new=self._has_begun and self._trouble_since == now)
        return delay

    def _log_failure(self, failed_at: str, error: ServingError, is_new: bool) -> None:
        if is_new:
            _log.warning("interrupted at %s (%s), resuming", failed_at, error.message)
        else:
            _log.debug("%s failed (%s), next is %s", failed_at, error.message, self.target)

    def _turn_to_next(self, now: float) -> float:
        if self._trouble_since is None:
            self._trouble_since = now
            return 0.0
        num_targets = len(self._targets.addresses)
        self._num_failures += 1
        self._index = (self._index + 1) % num_targets
        num_rounds, is_inside_round = divmod(self._num_failures, num_targets)
        if is_inside_round:
            return 0.0
        longest: float = min(_FIRST_DELAY_SECONDS * 2 ** min(num_rounds - 1, 10), _LONGEST_DELAY_SECONDS)
        return longest * (0.5 + 0.5 * self._jitter())

    def _give_up(self, error: ServingError, num_tokens: int | None) -> ServingError:
        if num_tokens is not None:
            message = (
                f"the stream broke after {num_tokens} tokens and could not be resumed within "
                f"resume_seconds={self._limits.resume_seconds:g}: {error.message}"
            )
            return ResumeExhausted(error.code, message, error.request_id)
        addresses = ", ".join(self._targets.addresses)
        message = f"no answer from {addresses} within connect_seconds={self._limits.connect_seconds:g}: {error.message}"
        return ServerUnreachable(error.code, message, error.request_id)


def timed_out(timeout: float, why: str, error: ServingError) -> ServingError:
    """The end of a request whose timeout has passed; `error` is what it met last."""
    return ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, f"timeout={timeout:g}: {why}", error.request_id)


def _is_passing(error: ServingError, resuming: bool, is_first: bool) -> bool:
    match error.code:
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            # A new request is told that the queue is full; one that has begun keeps its place in line.
            return resuming and error.retry_after_seconds is not None
        case grpc.StatusCode.ALREADY_EXISTS:
            # Our own earlier attempt may have the id, until the server notices that nobody listens to it any more.
            return not (resuming or is_first)
        case code:
            return code is grpc.StatusCode.UNAVAILABLE
