"""Tools, and what is asked of the form of an answer."""

from typing import Any, Literal

from pydantic import Field

from clients.gateway.schemas.common import Body, NonEmpty


class FunctionDefinition(Body):
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: NonEmpty
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(None, description="Calls that tool_choice requires fit their schema in any case.")


class FunctionTool(Body):
    """A tool."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionName(Body):
    """Name of a function."""

    name: NonEmpty


class NamedToolChoice(Body):
    """The very function to be called."""

    type: Literal["function"] = "function"
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


class JsonSchema(Body):
    """A named JSON schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """A JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat
