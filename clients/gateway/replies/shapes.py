"""Shapes of OpenAI's answers; they make the OpenAPI document too."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class ErrorShape(TypedDict):
    """What went wrong; `param` is the field that is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(TypedDict):
    """The body of every failure."""

    error: ErrorShape


class PromptTokensDetails(TypedDict):
    """Where prompt tokens came from."""

    cached_tokens: int


class UsageShape(TypedDict):
    """Token counts of a request: its prompt once, and all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprobShape(TypedDict):
    """An alternative at a position."""

    token: str
    logprob: float
    bytes: list[int]


class LogprobShape(TypedDict):
    """A token of the answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobShape]


class ChatLogprobs(TypedDict):
    """All tokens of a choice, whether they became content or not."""

    content: list[LogprobShape]


class FunctionShape(TypedDict):
    """What is called, with arguments as JSON text."""

    name: str
    arguments: str


class ToolCallShape(TypedDict):
    """A call."""

    id: str
    type: Literal["function"]
    function: FunctionShape


class MessageShape(TypedDict):
    """The answer's turn."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallShape]]


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: MessageShape
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(TypedDict):
    """A whole answer to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageShape


class CompletionLogprobs(TypedDict):
    """Columns, one entry per token; the first token of a prompt has no log probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str


class TextCompletion(TypedDict):
    """Whole continuations of all prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageShape


class ModelShape(TypedDict):
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(TypedDict):
    """All served models."""

    object: Literal["list"]
    data: list[ModelShape]


class ResponseShape(TypedDict):
    """A response; its output are messages, thoughts and calls. Fields of the body come back beside these."""

    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    usage: dict[str, Any] | None
