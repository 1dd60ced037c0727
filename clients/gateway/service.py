"""What routes need of the gateway: who calls, which model is meant, what was not understood."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Receive

from clients.async_client import AsyncClient
from clients.gateway.control_planes import ControlPlanes, ServedModel
from clients.gateway.errors import ApiError
from clients.gateway.live_state import LiveState
from clients.gateway.metrics import GatewayMetrics
from clients.gateway.schemas.common import Body
from clients.request import Request
from clients.results import Completion, Event, Started
from pypto_serving.process.credentials.files import HEADER_BYTES
from pypto_serving.wire.traceparent import TRACEPARENT, clean_traceparent

_MAX_LISTED = 32
#: Whole answers need not come token by token.
_UNARY_INTERVAL = 64

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent an HTTP request. `headers` are of the answer."""

    request_id: str
    api_key: str | None
    traceparent: str = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gateway:
    """What lives as long as the process. `is_strict`: fields that are not known are refused."""

    planes: ControlPlanes
    metrics: GatewayMetrics
    live_state: LiveState
    is_strict: bool = False
    max_body_bytes: int = 16 * 1024 * 1024

    def check(self, body: Body, caller: Caller) -> None:
        """Note fields that nobody looks at in the answer's headers; raises ApiError for them if strict."""
        unknown = list(body.unknown_fields())
        if unknown and self.is_strict:
            raise ApiError(400, f"{unknown[0]} is not a known field", param=unknown[0], code="unknown_parameter")
        if unknown:
            caller.headers["x-ignored-fields"] = ", ".join(quote(name, safe="[].") for name in unknown[:_MAX_LISTED])

    async def model(self, name: str, caller: Caller) -> tuple[ServedModel, AsyncClient]:
        """The model that a body names, and a client with the caller's key."""
        served = await self.planes.served(name, caller.api_key)
        return served, served.client.with_api_key(caller.api_key)


def gateway_of(request: HttpRequest) -> Gateway:
    """The gateway that serves a request."""
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


def caller_of(request: HttpRequest) -> Caller:
    """Who calls; raises ApiError for a key that no control plane could be told."""
    return Caller(request.scope["request_id"], _api_key(request.headers.get("authorization", "")), _traceparent(request))


def _traceparent(request: HttpRequest) -> str:
    """The trace of the request; an invalid one is ignored, as W3C has it."""
    values = request.headers.getlist(TRACEPARENT)
    return clean_traceparent(values[0]) if len(values) == 1 else ""


def _api_key(authorization: str) -> str | None:
    scheme, _, key = authorization.partition(" ")
    key = key.strip()
    if not key:
        return None
    if scheme.lower() != "bearer" or not set(key.encode()) <= HEADER_BYTES:
        message = "authorization: must be Bearer and a key of visible ASCII characters"
        raise ApiError(401, message, "authentication_error", code="invalid_api_key")
    return key


async def started(client: AsyncClient, request: Request, caller: Caller) -> tuple[Started, AsyncGenerator[Event, None]]:
    """Send a request; returns when it has been accepted, with the events that follow."""
    events = client.send(request)
    first = await anext(events)
    assert isinstance(first, Started)
    caller.headers.update(first.rate_limits)
    return first, events


async def whole(client: AsyncClient, request: Request, caller: Caller) -> Completion:
    """The whole answer."""
    completion = await client.answer(replace(request, stream_interval=_UNARY_INTERVAL))
    caller.headers.update(completion.started.rate_limits)
    return completion


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone away, or the answer is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: HttpRequest, work: Coroutine[Any, Any, R]) -> R:
    """The result of `work`, which is cancelled when the client goes away; raises ClientDisconnect then."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
