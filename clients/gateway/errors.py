"""Errors in OpenAI's shape."""

import math
import re
from collections.abc import Sequence
from typing import Any

import grpc
from starlette.exceptions import HTTPException

from clients.errors import ClientClosed, ServingError
from pypto_serving.inference.v1 import inference_pb2 as pb

_WIRE = (pb.GenerationSpec, pb.SamplingParams, pb.StoppingParams, pb.OutputOptions, pb.Constraint, pb.Chat, pb.Resume, pb.TokenizeRequest)
#: Names that control planes' messages begin with.
_FIELDS = frozenset(field.name for message in _WIRE for field in message.DESCRIPTOR.fields) | {"prompt"}
#: Fields of the wire that HTTP clients know by other names.
_PARAMS = {"text": "prompt", "token_ids": "prompt", "json_schema": "response_format", "template_arguments": "chat_template_kwargs"}
#: The first word of a message, without the name of the message on the wire that holds the field.
_FIRST_WORD = re.compile(r"(?:(?:sampling|stopping|output|chat|constraint)\.)?(\w+)")
_TOO_LONG = re.compile(r"the prompt has \d+ tokens, and a request may have")
_MAX_SHOWN = 80
#: How pydantic begins to say which type a value is to have.
_EXPECTED = "Input should be "


class ApiError(HTTPException):
    """An error that an HTTP client is told; `param` is the field of its body that is wrong."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(status, message)
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers: dict[str, str] = {}  # of the answer

    @property
    def body(self) -> dict[str, Any]:
        """OpenAI's shape."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


#: Status, type and code of OpenAI's API by the status of a call.
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: (400, "invalid_request_error", None),
    grpc.StatusCode.FAILED_PRECONDITION: (400, "invalid_request_error", "not_supported_by_model"),
    grpc.StatusCode.OUT_OF_RANGE: (400, "invalid_request_error", None),
    grpc.StatusCode.UNAUTHENTICATED: (401, "authentication_error", "invalid_api_key"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "permission_error", None),
    grpc.StatusCode.NOT_FOUND: (404, "invalid_request_error", "model_not_found"),
    grpc.StatusCode.ALREADY_EXISTS: (409, "invalid_request_error", "request_id_in_use"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error", "rate_limit_exceeded"),
    grpc.StatusCode.UNIMPLEMENTED: (501, "server_error", None),
    grpc.StatusCode.UNAVAILABLE: (503, "server_error", "unavailable"),
    grpc.StatusCode.CANCELLED: (503, "server_error", "cancelled"),
    grpc.StatusCode.ABORTED: (500, "server_error", "aborted"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (504, "server_error", "timeout"),
}
_OTHER = (500, "server_error", "internal_error")


def from_serving_error(error: ServingError) -> ApiError:
    """What a failed call is to an HTTP client."""
    if isinstance(error, ClientClosed):  # by the gateway itself, whose end it is
        error = ServingError(grpc.StatusCode.UNAVAILABLE, "the gateway is shutting down", error.request_id)
    status, kind, code = _STATUSES.get(error.code, _OTHER)
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after_seconds is None:
        status, kind, code = 413, "invalid_request_error", "request_too_large"
    told = ApiError(status, error.message, kind, code=code)
    if status == 400:
        _name_field(told)
    told.headers.update(error.rate_limits)
    if error.retry_after_seconds is not None:
        told.headers["retry-after"] = str(math.ceil(error.retry_after_seconds))
        told.headers["retry-after-ms"] = str(math.ceil(error.retry_after_seconds * 1000))
    return told


def _name_field(error: ApiError) -> None:
    """Say which field is wrong, by the name that HTTP clients know it by."""
    if _TOO_LONG.search(error.message):
        error.code = "context_length_exceeded"
    first = _FIRST_WORD.match(error.message)
    if first and first[1] in _FIELDS:
        error.param = _PARAMS.get(first[1], first[1])
        error.message = error.param + error.message[first.end() :]


def from_validation(errors: Sequence[Any]) -> ApiError:
    """What is wrong with a body, in the words of the first thing that is."""
    # Of a union's branches the one that came furthest, and of those the one that takes such values, if not this one.
    error = min(errors, key=lambda error: (-len(error["loc"]), error["type"].endswith("_type")))
    place = [str(part) if isinstance(part, int) else part for part in error["loc"] if part != "body"]
    param = ".".join(part for part in place if not _is_branch(part)) or None
    if isinstance(error["input"], bytes):  # FastAPI parses nothing else, so that no page of another site can send a request unasked
        return ApiError(415, "the content-type has to be application/json", code="unsupported_media_type")
    if error["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {error.get('ctx', {}).get('error', error['msg'])}")
    if error["type"] == "missing":
        return ApiError(400, f"{param or 'the body'} is missing", param=param, code="missing_required_parameter")
    if error["type"] == "none_required":
        return ApiError(400, f"{param} = {_shown(error['input'])}: is not supported", param=param, code="invalid_value")
    why = error["msg"]
    if error["type"].endswith("_type"):  # no branch takes it: any of them would do
        others = (other for other in errors if len(other["loc"]) == len(error["loc"]) and other["input"] == error["input"])
        kinds = dict.fromkeys(other["msg"].removeprefix(_EXPECTED) for other in others if other["msg"].startswith(_EXPECTED))
        why = _EXPECTED + " or ".join(kinds)
    return ApiError(400, f"{param or 'the body'} = {_shown(error['input'])}: {why}", param=param, code="invalid_value")


def _is_branch(part: str) -> bool:
    """Whether it names a branch of a union, as pydantic writes them, and no field."""
    return not part or part[0].isupper() or "[" in part or part in ("str", "int")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
