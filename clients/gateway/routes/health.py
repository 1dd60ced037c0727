"""Health in JSON, probes in plain text as those of every other process, and metrics; open without a key."""

import prometheus_client
from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from typing_extensions import TypedDict

from clients.gateway.errors import ApiError
from clients.gateway.routes.replies import documented
from clients.gateway.service import gateway_of
from pypto_serving.process.metrics_endpoint import register_process

ROUTER = APIRouter()


class HealthReply(TypedDict):
    """The gateway is well."""

    status: str


@ROUTER.get("/livez", include_in_schema=False)
@ROUTER.get("/startupz", include_in_schema=False)
async def live() -> Response:
    """Whether the process answers."""
    return _probe_answer("")


@ROUTER.get("/readyz", include_in_schema=False)
async def takes_traffic(http: HttpRequest) -> Response:
    """Whether a control plane would take a request now."""
    return _probe_answer(gateway_of(http).planes.trouble)


def _probe_answer(trouble: str) -> Response:
    return PlainTextResponse(f"{trouble or 'ok'}\n", 503 if trouble else 200)


@ROUTER.get("/health", responses=documented(HealthReply), response_model=None)
async def health() -> Response:
    """Whether the process answers."""
    return JSONResponse({"status": "ok"})


@ROUTER.get("/ready", responses=documented(HealthReply), response_model=None)
async def ready(http: HttpRequest) -> Response:
    """Whether a control plane would take a request now."""
    if trouble := gateway_of(http).planes.trouble:
        raise ApiError(503, trouble, "server_error", code="unavailable")
    return JSONResponse({"status": "ready"})


@ROUTER.get("/metrics", response_class=PlainTextResponse, response_model=None)
async def metrics(http: HttpRequest) -> Response:
    """Counts of the gateway for Prometheus."""
    registry = CollectorRegistry()
    register_process(registry)
    registry.register(gateway_of(http).metrics)
    return Response(prometheus_client.generate_latest(registry), media_type=prometheus_client.CONTENT_TYPE_LATEST)
