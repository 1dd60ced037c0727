"""Bodies of /tokenize and /detokenize."""

from typing import Any

from pydantic import Field

from clients.gateway.schemas.chat import Message
from clients.gateway.schemas.common import Body, TokenId
from clients.gateway.schemas.tools import FunctionTool


class TokenizeRequest(Body):
    """A text (`prompt`) or a conversation (`messages`), exactly one of them."""

    model: str = ""
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    tools: list[FunctionTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = Field(None, description="Of a text; default true.")


class DetokenizeRequest(Body):
    """Token ids."""

    model: str = ""
    tokens: list[TokenId]
    skip_special_tokens: bool = False
