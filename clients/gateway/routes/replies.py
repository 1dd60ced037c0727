"""What routes of one kind share: their documented failures, and answers in JSON."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from clients.gateway.replies.shapes import ErrorReply
from clients.gateway.service import Caller

#: For the OpenAPI document.
FAILURES: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorReply}, "5XX": {"model": ErrorReply}}


def documented(shape: Any, streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route."""
    success: dict[str, Any] = {"model": shape}
    if streams:
        success["content"] = {"text/event-stream": {}}
    return {200: success, **FAILURES}


def json_reply(content: Mapping[str, Any], caller: Caller) -> JSONResponse:
    """A whole answer."""
    return JSONResponse(content, headers=caller.headers)
