"""/state: what the service does now."""

from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from typing_extensions import TypedDict

from clients.gateway.routes.replies import documented, json_reply
from clients.gateway.service import caller_of, gateway_of, unless_gone
from clients.service_state.state import Activity, ControlPlaneState

ROUTER = APIRouter()


class StateReply(TypedDict):
    """The service at `at`, in seconds since 1970. `missing_flags`: what the gateway would have to be started with to tell more."""

    at: float
    control_planes: list[ControlPlaneState]
    activity: Activity | None
    failures: dict[str, str]
    missing_flags: list[str]


@ROUTER.get("/state", responses=documented(StateReply), response_model=None)
async def state(http: HttpRequest) -> Response:
    """Workers, pages, queue, speeds, times and errors; open to every key that a control plane takes."""
    live, caller = gateway_of(http).live_state, caller_of(http)
    await unless_gone(http, live.check_key(caller.api_key))
    shown = asdict(await unless_gone(http, live.current()))
    flags = {"--admin-target HOST:PORT": live.shows_workers, "--metrics-url URL": live.shows_activity}
    return json_reply({**shown, "missing_flags": [flag for flag, is_given in flags.items() if not is_given]}, caller)
