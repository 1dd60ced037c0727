"""What surrounds every request: its id, the bound of its body, what is counted, and what becomes of a defect."""

import logging
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clients.gateway.errors import ApiError
from clients.gateway.service import Gateway

_log = logging.getLogger(__name__)

_DROPPED_BODIES = 4  # as large as the largest that is taken
_MAX_REQUEST_ID = 200  # of 256; some get more behind it


class Envelope:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        await _Exchange(self._gateway, scope, receive, send).run(self._app)


class _Exchange:
    """One request and its answer."""

    def __init__(self, gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
        self._gateway = gateway
        self._scope, self._receive, self._send = scope, receive, send
        self._began_at = time.monotonic()
        self._num_bytes = 0
        self._num_declared = int(dict(scope["headers"]).get(b"content-length", 0))
        self._status = 0
        scope["direct_send"] = send
        self._request_id = scope["request_id"] = _given_id(scope) or secrets.token_hex(12)

    async def run(self, app: ASGIApp) -> None:
        metrics = self._gateway.metrics
        metrics.num_live += 1
        try:
            await app(self._scope, self._receive_bounded, self._send_noted)
        except Exception:
            _log.exception("a defect of the gateway", extra={"request_id": self._request_id})
        finally:
            metrics.num_live -= 1
            metrics.answered(getattr(self._scope.get("route"), "path", "other"), self._status, self._began_at)

    async def _receive_bounded(self) -> Message:
        """The next part of the body; raises ApiError in the application, which answers it, when there is too much.

        Of that a part is still taken in, and dropped: most clients look for an answer only when they have sent everything.
        """
        limit = self._gateway.max_body_bytes
        message = await self._receive()
        self._num_bytes += len(message.get("body", b""))
        if max(self._num_bytes, self._num_declared) > limit:
            while message.get("more_body") and self._num_bytes < _DROPPED_BODIES * limit:
                message = await self._receive()
                self._num_bytes += len(message.get("body", b""))
            raise ApiError(413, f"the body has more than {limit} bytes", code="request_too_large")
        return message

    async def _send_noted(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message["headers"].append((b"x-request-id", self._request_id.encode()))
        await self._send(message)


def _given_id(scope: Scope) -> str:
    """The id that the client gave, if control planes take it as one."""
    given: bytes = dict(scope["headers"]).get(b"x-request-id", b"")
    return given.decode() if len(given) <= _MAX_REQUEST_ID and all(0x20 <= byte < 0x7F for byte in given) else ""
