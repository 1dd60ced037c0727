"""The exceptions that clients raise."""

from collections.abc import Iterable
from typing import Any, Protocol

import grpc

from clients.connection_trouble import trouble_of


class ServingError(Exception):
    """A request failed.

    `code` is the gRPC status code, `message` names field, value and limit where input was refused, `request_id` is empty when the server
    did not get to name the request, `retry_after_seconds` is set when the server asked to come back later.
    """

    def __init__(self, code: grpc.StatusCode, message: str, request_id: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds


class ServerUnreachable(ServingError):
    """No target took the request within `connect_seconds`."""


class ResumeExhausted(ServingError):
    """A stream broke and could not be resumed within `resume_seconds`."""


def invalid(message: str) -> ServingError:
    """The error of a request that is refused before it is sent."""
    return ServingError(grpc.StatusCode.INVALID_ARGUMENT, message)


class RpcStatus(Protocol):
    """What a failed call tells, in threads and in asyncio alike."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Iterable[Any] | None: ...


def from_status(status: RpcStatus, request_id: str = "") -> ServingError:
    """The error of a failed call."""
    details = status.details() or "no details"
    trouble = trouble_of(details)
    message = f"the server can not be talked to: {trouble} ({details})" if trouble else details
    return ServingError(status.code(), message, request_id, _retry_after_seconds(status))


def _retry_after_seconds(status: RpcStatus) -> float | None:
    for key, value in status.trailing_metadata() or ():
        if key == "retry-after-ms" and str(value).isdecimal():
            return int(value) / 1000
    return None
