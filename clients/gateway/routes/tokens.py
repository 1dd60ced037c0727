"""/tokenize and /detokenize."""

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from typing_extensions import TypedDict

from clients.gateway.errors import ApiError
from clients.gateway.routes.replies import documented, json_reply
from clients.gateway.schemas.tokens import DetokenizeRequest, TokenizeRequest
from clients.gateway.service import caller_of, gateway_of, unless_gone
from clients.gateway.translation.chat import template_tools, turn
from clients.request import Request

ROUTER = APIRouter()


class TokenizeReply(TypedDict):
    """Token ids; `max_model_len` is the most tokens of a prompt and its output."""

    count: int
    tokens: list[int]
    max_model_len: int


class DetokenizeReply(TypedDict):
    """The text of token ids."""

    prompt: str


@ROUTER.post("/tokenize", responses=documented(TokenizeReply), response_model=None)
async def tokenize(body: TokenizeRequest, http: HttpRequest) -> Response:
    """The token ids that an answer to a text or conversation would begin with."""
    gateway, caller = gateway_of(http), caller_of(http)
    gateway.check(body, caller)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give exactly one of prompt and messages", param="prompt")
    _, client = await gateway.model(body.model, caller)
    tokens = await unless_gone(http, client.tokenize_prompt(_prompt(body), add_special_tokens=body.add_special_tokens))
    ids = list(tokens.token_ids)
    return json_reply({"count": len(ids), "tokens": ids, "max_model_len": tokens.max_model_len}, caller)


def _prompt(body: TokenizeRequest) -> Request:
    if body.messages is None:
        return Request(body.prompt, model=body.model)
    return Request(
        messages=[turn(message) for message in body.messages],
        tools=template_tools([tool.function for tool in body.tools or ()]),
        template_arguments=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        model=body.model,
    )


@ROUTER.post("/detokenize", responses=documented(DetokenizeReply), response_model=None)
async def detokenize(body: DetokenizeRequest, http: HttpRequest) -> Response:
    """The text of token ids."""
    gateway, caller = gateway_of(http), caller_of(http)
    gateway.check(body, caller)
    _, client = await gateway.model(body.model, caller)
    text = await unless_gone(http, client.detokenize(body.tokens, skip_special_tokens=body.skip_special_tokens))
    return json_reply({"prompt": text}, caller)
