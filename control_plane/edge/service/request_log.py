"""One line in the log for each request that ended: whose it was, how it went, how long it took. Never its text."""

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from control_plane.edge.access.callers import CALLER, Metadata
from control_plane.edge.config import LoggedRequests
from control_plane.edge.service.choice_output import ChoiceOutput
from control_plane.edge.service.errors import REQUEST_ID
from control_plane.edge.service.request_stream import RequestStream
from control_plane.edge.service.trace_context import traceparent_of
from pypto_serving.inference.v1 import inference_pb2

_log = logging.getLogger(__name__)

#: Methods that run a request.
_GENERATING = ("Generate", "GenerateStream")

_MAX_ID = 256
_DIGITS = 6  # microseconds

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class RequestRecord:
    """What is known of a request that a call has begun."""

    request_id: str  # the client's, or one of ours
    is_resume: bool
    traceparent: str  # empty: the call has none
    began_at: float = field(default_factory=time.monotonic)
    num_prompt_tokens: int | None = None  # None: it was never admitted
    stream: RequestStream | None = None  # None: the engine never had it


_RECORD: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def begin_record(spec: inference_pb2.GenerationSpec, context: _Context) -> RequestRecord:
    """Begin the record of the request that the current task serves."""
    given = spec.request_id
    is_loggable = 0 < len(given) <= _MAX_ID and given.isascii() and given.isprintable()
    record = RequestRecord(given if is_loggable else _drawn_id(), spec.HasField("resume"), traceparent_of(context))
    _RECORD.set(record)
    return record


class RequestLog:
    """Hears of every call that ended, in the task that served it, and hands calls on to those who count them.

    The line itself is made and written on the log's thread, which drops and counts lines where there are too many.
    """

    def __init__(self, which: LoggedRequests, count_call: Callable[[str, grpc.StatusCode], None]) -> None:
        self._which = which
        self._count_call = count_call
        self.model = ""  # as requests call it; to be set before there are any

    def observe_call(self, method: str, code: grpc.StatusCode, context: _Context) -> Metadata:
        """Note a call that ended; returns the id of its request, as metadata."""
        self._count_call(method, code)
        if method not in _GENERATING:
            if _log.isEnabledFor(logging.DEBUG):
                _log.debug("call", extra={"method": method, "code": code.name.lower(), **_caller(context)})
            return ()
        # Without a record the call was refused before it was read, which took no time.
        record = _RECORD.get() or RequestRecord(_drawn_id(), is_resume=False, traceparent=traceparent_of(context))
        if self._which is LoggedRequests.ALL or (self._which is LoggedRequests.FAILED and code is not grpc.StatusCode.OK):
            about = {"method": method, "code": code.name.lower(), "request_id": record.request_id, **_caller(context), "model": self.model}
            _log.info("request", extra=about | _figures(record))
        return ((REQUEST_ID, record.request_id),)


def _drawn_id() -> str:
    return secrets.token_hex(16)


def _caller(context: _Context) -> dict[str, object]:
    name, peer = CALLER.get().name, context.peer()
    return {"key": name, "peer": peer} if name else {"peer": peer}


def _figures(record: RequestRecord) -> dict[str, object]:
    """What is known; the rest is left out."""
    figures: dict[str, object] = {"resumed": True} if record.is_resume else {}
    if record.num_prompt_tokens is not None:
        figures["prompt_tokens"] = record.num_prompt_tokens
    if record.stream:
        figures |= _output(record.stream, record.began_at)
    figures["total_seconds"] = _rounded(time.monotonic() - record.began_at)
    if record.traceparent:
        figures["traceparent"] = record.traceparent
    return figures


def _output(stream: RequestStream, began_at: float) -> dict[str, object]:
    choices = stream.choices
    ends = [end for choice in choices if (end := choice.end)]
    output: dict[str, object] = {"output_tokens": sum([choice.num_tokens for choice in choices]), "finish": _reasons(choices)}
    if ends:
        output["cached_tokens"] = ends[0].num_cached_tokens
        output["queue_seconds"] = _rounded(min([end.queue_seconds for end in ends]))
        if workers := {end.worker for end in ends if end.worker}:
            output["worker"] = ",".join(sorted(workers))
    if stream.first_token_time is not None:
        output["first_token_seconds"] = _rounded(stream.first_token_time - began_at)
    return output


def _reasons(choices: Sequence[ChoiceOutput]) -> str:
    """How each choice ended; `none` for one that was broken off. Of equal ones one stands for all."""
    reasons = ["stop" if choice.is_stopped else choice.end.reason.value if choice.end else "none" for choice in choices]
    return ",".join(reasons if len(set(reasons)) > 1 else reasons[:1])


def _rounded(seconds: float) -> float:
    return round(seconds, _DIGITS)
