"""Bodies of /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field

from clients.gateway.schemas.common import Body, Count, Generation, NonEmpty
from clients.gateway.schemas.tools import FunctionTool, ResponseFormat, ToolChoice


class TextPart(Body):
    """A part of a message; only texts are taken."""

    type: Literal["text"]
    text: str


class FunctionCall(Body):
    """What a model called; `arguments` is JSON text."""

    name: NonEmpty
    arguments: str


class ToolCall(Body):
    """A call in a turn of the assistant."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Body):
    """A turn of a conversation."""

    role: NonEmpty
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @property
    def text(self) -> str | None:
        """The content; parts follow each other without anything in between."""
        return "".join(part.text for part in self.content) if isinstance(self.content, list) else self.content


class ChatRequest(Generation):
    """A conversation to be answered."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: Annotated[ResponseFormat, Discriminator("type")] | None = None
    reasoning_effort: str | None = Field(None, description="Argument of the model's chat template.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Arguments of the model's chat template.")
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    literal_text: bool | None = None
    metadata: dict[str, Any] | None = Field(None, description="Ignored.")
    store: bool | None = Field(None, description="Ignored: nothing is stored.")
    service_tier: str | None = Field(None, description="Ignored.")
    safety_identifier: str | None = Field(None, description="Ignored.")
    prompt_cache_key: str | None = Field(None, description="Ignored.")
    verbosity: str | None = Field(None, description="Ignored.")
