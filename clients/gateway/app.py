"""Assembles the application."""

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from clients.errors import ServingError
from clients.gateway.errors import ApiError, from_serving_error, from_validation
from clients.gateway.routes import chat, completions, health, models, page, responses, state, tokens
from clients.gateway.service import Gateway, gateway_of
from pypto_serving.process.version import version

_TITLE = "PyPTO Serving"


def build_app(gateway: Gateway) -> FastAPI:
    """The application; whoever serves it starts and closes the gateway's control planes."""
    app = FastAPI(title=_TITLE, version=version(), docs_url=None, redoc_url=None)
    app.state.gateway = gateway
    for routes in (chat, completions, responses, models, tokens, health, state):
        app.include_router(routes.ROUTER)
    app.include_router(page.router())
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(ServingError, _failed_call)
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _defect)
    return app


async def _invalid_body(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _reply(from_validation(error.errors()))


async def _failed_call(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ServingError)
    return _reply(from_serving_error(error))


async def _refused(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _reply(error)


async def _no_route(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 400:  # the only one of FastAPI itself
        return _reply(ApiError(400, "the body is no JSON in UTF-8, or it is nested too deep"))
    told = ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}", code="unknown_url")
    told.headers.update(error.headers or {})
    return _reply(told)


async def _gone(request: HttpRequest, error: Exception) -> Response:
    """Nobody reads it."""
    gateway_of(request).metrics.num_disconnects += 1
    return Response(status_code=499)


async def _defect(request: HttpRequest, error: Exception) -> Response:
    return _reply(ApiError(500, "a defect of the gateway, which is in its log", "server_error", code="internal_error"))


def _reply(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status_code, error.headers)
