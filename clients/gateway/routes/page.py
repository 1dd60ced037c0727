"""The page at /: files that lie beside the gateway's modules."""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

_FOLDER = Path(__file__).parents[1] / "page"
_START = "index.html"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

#: The page loads nothing from elsewhere, runs no script but its files, and is part of nobody's frame.
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # asked for each time, and sent only when it has changed
}


def router() -> APIRouter:
    """A route for each file, which is read now; the first one at / as well."""
    routes = APIRouter(include_in_schema=False)
    for path in sorted(_FOLDER.iterdir()):
        answer = _answerer(path.read_bytes(), _MEDIA_TYPES[path.suffix])
        for place in ("/", f"/page/{path.name}") if path.name == _START else (f"/page/{path.name}",):
            routes.add_api_route(place, answer, methods=["GET", "HEAD"], response_model=None)
    return routes


def _answerer(content: bytes, media_type: str) -> Callable[[HttpRequest], Awaitable[Response]]:
    headers = {**_HEADERS, "etag": f'"{hashlib.sha256(content).hexdigest()[:20]}"'}

    async def answer(http: HttpRequest) -> Response:
        if http.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return answer
