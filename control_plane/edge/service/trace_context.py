"""The trace that a call belongs to."""

from typing import Any

import grpc.aio

from pypto_serving.wire.traceparent import TRACEPARENT, clean_traceparent


def traceparent_of(context: "grpc.aio.ServicerContext[Any, Any]") -> str:
    """The call's `traceparent`, as version 0 writes it; empty when there is none, or an invalid one. Of several gRPC keeps the last."""
    value = dict(context.invocation_metadata() or ()).get(TRACEPARENT, "")
    return clean_traceparent(value) if isinstance(value, str) else ""
