"""/v1/models."""

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from clients.gateway.errors import ApiError
from clients.gateway.replies.shapes import ModelList, ModelShape
from clients.gateway.routes.replies import documented, json_reply
from clients.gateway.service import caller_of, gateway_of, unless_gone
from clients.results import Model

ROUTER = APIRouter()


@ROUTER.get("/v1/models", responses=documented(ModelList), response_model=None)
async def list_models(http: HttpRequest) -> Response:
    """All models that the caller may use."""
    caller = caller_of(http)
    models = await unless_gone(http, gateway_of(http).planes.models(caller.api_key))
    return json_reply({"object": "list", "data": [_shape(model) for model in models]}, caller)


@ROUTER.get("/v1/models/{model:path}", responses=documented(ModelShape), response_model=None)
async def get_model(model: str, http: HttpRequest) -> Response:
    """One model."""
    caller = caller_of(http)
    models = await unless_gone(http, gateway_of(http).planes.models(caller.api_key))
    for served in models:
        if served.name == model:
            return json_reply(_shape(served), caller)
    raise ApiError(404, f"model {model!r} is not served", param="model", code="model_not_found")


def _shape(model: Model) -> ModelShape:
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "pypto-serving", "max_model_len": model.max_model_len}
