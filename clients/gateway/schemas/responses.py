"""Bodies of /v1/responses: the part of OpenAI's that needs no state on the server."""

from typing import Annotated, Any, Literal

from pydantic import Field

from clients.gateway.schemas.common import Body, Count, NonEmpty, Sampling


class InputText(Body):
    """A part of a message; only texts are taken."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(Body):
    """A turn of a conversation."""

    type: Literal["message"] = "message"
    role: NonEmpty
    content: str | list[InputText]


class FunctionCallItem(Body):
    """A call that the assistant made; `arguments` is JSON text."""

    type: Literal["function_call"]
    call_id: str
    name: NonEmpty
    arguments: str


class FunctionCallOutput(Body):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]


class ReasoningText(Body):
    """A part of thoughts."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Body):
    """What the assistant thought before the next item."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    summary: list[Any] | None = None


InputItem = FunctionCallItem | FunctionCallOutput | ReasoningItem | InputMessage


class FlatFunctionTool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    name: NonEmpty
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatToolChoice(Body):
    """The very function to be called."""

    type: Literal["function"]
    name: NonEmpty


class FlatJsonSchemaFormat(Body):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    name: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class PlainFormat(Body):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class TextOptions(Body):
    """The form of the text."""

    format: PlainFormat | FlatJsonSchemaFormat | None = None
    verbosity: str | None = Field(None, description="Ignored.")


class ReasoningOptions(Body):
    """How much is thought: an argument of the model's chat template."""

    effort: str | None = None
    summary: str | None = Field(None, description="Ignored: thoughts are told as they are.")


class ResponsesRequest(Sampling):
    """A conversation to be answered, in OpenAI's newer form."""

    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: list[FlatFunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    metadata: dict[str, Any] | None = Field(None, description="Comes back in the answer.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Arguments of the model's chat template.")
    previous_response_id: None = Field(None, description="Not supported: nothing is stored.")
    background: Literal[False] | None = None
    store: bool | None = Field(None, description="Ignored: nothing is stored.")
    include: list[str] | None = Field(None, description="Ignored.")
    truncation: Literal["disabled"] | None = None
    service_tier: str | None = Field(None, description="Ignored.")
    safety_identifier: str | None = Field(None, description="Ignored.")
    prompt_cache_key: str | None = Field(None, description="Ignored.")
