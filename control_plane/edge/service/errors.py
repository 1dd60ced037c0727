"""How calls end: the errors that a client sees, one class per gRPC status, and deadlines. Messages name field, value and limit."""

import asyncio
import time
from collections.abc import Mapping
from typing import ClassVar

import grpc
import grpc.aio

from control_plane.edge.access.callers import Metadata
from control_plane.engine.ports import Failure, RequestFailed

#: What calls hear that come, or still wait, when the server drains.
SHUTTING_DOWN = "the server is shutting down: send the request to another one"

#: Comes with what fails: by which id the log has it.
REQUEST_ID = "request-id"

#: A client's own clock ends its call a little before ours would.
_TOLERANCE_SECONDS = 0.05


class RequestError(Exception):
    """A request cannot be answered; the message is for the client."""

    code: ClassVar[grpc.StatusCode]
    metadata: Metadata = ()  # comes with the status

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class InvalidArgument(RequestError):
    """A parameter is wrong."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(RequestError):
    """There is no such model."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(RequestError):
    """A live request has this id."""

    code = grpc.StatusCode.ALREADY_EXISTS


class FailedPrecondition(RequestError):
    """The server is not set up for this."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class ResourceExhausted(RequestError):
    """The queue is full."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class OverQuota(ResourceExhausted):
    """The tenant has used what it may."""


class ReaderTooSlow(ResourceExhausted):
    """The client has taken nothing for too long."""


class Unavailable(RequestError):
    """The server drains, or has no worker."""

    code = grpc.StatusCode.UNAVAILABLE


class Aborted(RequestError):
    """The request was given up after it had lost too many workers."""

    code = grpc.StatusCode.ABORTED


class Cancelled(RequestError):
    """The request was aborted, or taken over by a resume."""

    code = grpc.StatusCode.CANCELLED
    metadata = (("cancelled-by", "server"),)  # tells it from gRPC's own CANCELLED, which says nothing about the request


class DeadlineExceeded(RequestError):
    """The client's deadline has passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class InternalError(RequestError):
    """A defect of the server."""

    code = grpc.StatusCode.INTERNAL


class Deadline:
    """The deadline of one call, made when the call begins: gRPC says how many seconds remain (None: no end) by the wall clock, which may
    jump, and this keeps them on the steady one.
    """

    def __init__(self, seconds: float | None) -> None:
        self._time = None if seconds is None else time.monotonic() + seconds

    @property
    def has_passed(self) -> bool:
        """Whether it has been reached; never without one."""
        return self._time is not None and time.monotonic() > self._time - _TOLERANCE_SECONDS


_BY_FAILURE: Mapping[Failure, type[RequestError]] = {
    Failure.INVALID_ARGUMENT: InvalidArgument,
    Failure.ALREADY_EXISTS: AlreadyExists,
    Failure.QUEUE_FULL: ResourceExhausted,
    Failure.OVER_QUOTA: OverQuota,
    Failure.UNAVAILABLE: Unavailable,
    Failure.ABORTED: Aborted,
    Failure.CANCELLED: Cancelled,
    Failure.DEADLINE_EXCEEDED: DeadlineExceeded,
    Failure.READER_TOO_SLOW: ReaderTooSlow,
    Failure.INTERNAL: InternalError,
}


def error_of(failed: RequestFailed) -> RequestError:
    """The error that tells a client how its request failed in the engine."""
    return _BY_FAILURE[failed.failure](failed.message, failed.retry_after_seconds)


def failure_of(error: BaseException, deadline: Deadline) -> Failure:
    """What the engine counts when a call ends with an error before its request does."""
    if isinstance(error, asyncio.CancelledError | grpc.aio.BaseError):  # gRPC: there is no client any more
        return Failure.DEADLINE_EXCEEDED if deadline.has_passed else Failure.CANCELLED
    return next((failure for failure, kind in _BY_FAILURE.items() if kind is type(error)), Failure.INTERNAL)
