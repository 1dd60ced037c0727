"""The exceptions that clients raise."""

import re
from collections.abc import Iterable
from typing import Any, Protocol

import grpc

from pypto_serving.process.connection_problems import connection_problem

#: Comes with the status of a request that was ended on purpose: aborted, or taken over by a resume.
_CANCELLED_BY = "cancelled-by"
#: Comes with the status of a request that failed, which the server may have named itself.
_REQUEST_ID = "request-id"

#: gRPC's own words, whichever side refuses.
_TOO_LARGE = re.compile(r"message larger than max \((\d+) vs\.? (\d+)\)")


#: Names and values of headers.
RateLimits = tuple[tuple[str, str], ...]


def rate_limits(metadata: Iterable[Any] | None) -> RateLimits:
    """What the metadata of a call says about the quota of its key."""
    return tuple((name, str(value)) for name, value in metadata or () if name.startswith("x-ratelimit-"))


class ServingError(Exception):
    """A request failed.

    `code` is the gRPC status code, `message` names field, value and limit where input was refused, `request_id` is empty when the server
    did not get to name the request, `retry_after_seconds` is set when the server asked to come back later. `rate_limits` say what is left
    of the key's quota, if it has one, by the names of OpenAI's headers.
    """

    def __init__(self, code: grpc.StatusCode, message: str, request_id: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        self.rate_limits: RateLimits = ()


class ServerUnreachable(ServingError):
    """No target took the request within `connect_seconds`."""


class ResumeExhausted(ServingError):
    """A stream broke and could not be resumed within `resume_seconds`."""


class ClientClosed(ServingError):
    """The client was closed under a call of its own."""

    def __init__(self, request_id: str = "") -> None:
        super().__init__(grpc.StatusCode.CANCELLED, "the client was closed", request_id)


def invalid(message: str) -> ServingError:
    """The error of a request that is refused before it is sent."""
    return ServingError(grpc.StatusCode.INVALID_ARGUMENT, message)


class RpcStatus(Protocol):
    """What a failed call tells, in threads and in asyncio alike."""

    def code(self) -> grpc.StatusCode: ...

    def details(self) -> str | None: ...

    def trailing_metadata(self) -> Iterable[Any] | None: ...


def from_status(status: RpcStatus, request_id: str = "") -> ServingError:
    """The error of a failed call that nobody here has cancelled."""
    code, details, metadata = status.code(), status.details() or "no details", dict(status.trailing_metadata() or ())
    if code is grpc.StatusCode.CANCELLED and _CANCELLED_BY not in metadata:
        # gRPC's own word: a server that stops drops calls that have just arrived.
        code, details = grpc.StatusCode.UNAVAILABLE, f"the server dropped the call ({details})"
    problem = connection_problem(details) if code is grpc.StatusCode.UNAVAILABLE else None
    message = f"the server cannot be talked to: {problem} ({details})" if problem else details
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and (sizes := _TOO_LARGE.search(details)):
        message = f"a message of {int(sizes[1]):,} bytes, at most {int(sizes[2]):,} are taken: shorten it, or ask for less at a time"
    retry_after_ms, request_id = str(metadata.get("retry-after-ms", "")), request_id or str(metadata.get(_REQUEST_ID, ""))
    error = ServingError(code, message, request_id, int(retry_after_ms) / 1000 if retry_after_ms.isdecimal() else None)
    error.rate_limits = rate_limits(metadata.items())
    return error


def from_only_try(status: RpcStatus) -> ServingError:
    """The error of a failed call that is not tried again: where nobody could answer it is ServerUnreachable."""
    error = from_status(status)
    return ServerUnreachable(error.code, error.message, error.request_id) if error.code is grpc.StatusCode.UNAVAILABLE else error
