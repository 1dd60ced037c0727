"""One line in the log for each request that ended: whose it was, how it went, how long it took. Never its text."""

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
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
    began_at: float  # by time.monotonic()
    num_prompt_tokens: int | None = None  # None: it was never admitted
    stream: RequestStream | None = None  # None: the engine never had it


_RECORD: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def begin_record(spec: inference_pb2.GenerationSpec) -> RequestRecord:
    """Begin the record of the request that the current task serves."""
    given = spec.request_id
    is_loggable = 0 < len(given) <= _MAX_ID and given.isascii() and given.isprintable()
    record = RequestRecord(given if is_loggable else uuid.uuid4().hex, spec.HasField("resume"), time.monotonic())
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
                _log.debug("call", extra={"method": method, "code": code.name.lower(), **dict(_caller(context))})
            return ()
        # Without a record the call was refused before it was read, which took no time.
        record = _RECORD.get() or RequestRecord(uuid.uuid4().hex, is_resume=False, began_at=time.monotonic())
        if self._which is LoggedRequests.ALL or (self._which is LoggedRequests.FAILED and code is not grpc.StatusCode.OK):
            _log.info("request", extra={"method": method, "code": code.name.lower(), **dict(self._fields(record, context))})
        return ((REQUEST_ID, record.request_id),)

    def _fields(self, record: RequestRecord, context: _Context) -> Iterator[tuple[str, object]]:
        """What is known; the rest is left out."""
        yield "request_id", record.request_id
        yield from _caller(context)
        yield "model", self.model
        yield from _figures(record)
        if traceparent := traceparent_of(context):
            yield "traceparent", traceparent


def _caller(context: _Context) -> Iterator[tuple[str, object]]:
    if name := CALLER.get().name:
        yield "key", name
    yield "peer", context.peer()


def _figures(record: RequestRecord) -> Iterator[tuple[str, object]]:
    choices = record.stream.choices if record.stream else ()
    ends = [end for choice in choices if (end := choice.end)]
    if record.is_resume:
        yield "resumed", True
    if record.num_prompt_tokens is not None:
        yield "prompt_tokens", record.num_prompt_tokens
    if ends:
        yield "cached_tokens", ends[0].num_cached_tokens
    if record.stream:
        yield "output_tokens", sum(choice.num_tokens for choice in choices)
        yield "finish", _reasons(choices)
    if ends:
        yield "queue_seconds", _rounded(min(end.queue_seconds for end in ends))
    if record.stream and record.stream.first_token_time is not None:
        yield "first_token_seconds", _rounded(record.stream.first_token_time - record.began_at)
    yield "total_seconds", _rounded(time.monotonic() - record.began_at)
    if workers := sorted({end.worker for end in ends if end.worker}):
        yield "worker", ",".join(workers)


def _reasons(choices: Sequence[ChoiceOutput]) -> str:
    """How each choice ended; `none` for one that was broken off. Of equal ones one stands for all."""
    reasons = ["stop" if choice.is_stopped else choice.end.reason.value if choice.end else "none" for choice in choices]
    return ",".join(reasons if len(set(reasons)) > 1 else reasons[:1])


def _rounded(seconds: float) -> float:
    return round(seconds, _DIGITS)
