"""What the bodies of several routes share. Ranges are the control plane's to check: it names field, value and limit."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

NonEmpty = Annotated[str, StringConstraints(min_length=1)]
#: Of the wire: unsigned 32 bits.
Count = Annotated[int, Field(ge=0, lt=1 << 32)]
Seed = Annotated[int, Field(ge=0, lt=1 << 64)]
TokenId = Count


class Body(BaseModel):
    """Fields that are not known are kept, and told to the client."""

    model_config = ConfigDict(extra="allow", strict=True)

    def unknown_fields(self, path: str = "") -> Iterator[str]:
        """Names of fields that nobody looks at, with the place where they stand."""
        yield from (f"{path}{name}" for name in self.model_extra or ())
        for name in type(self).model_fields:
            yield from _unknown_in(getattr(self, name), f"{path}{name}")


def _unknown_in(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Body):
        yield from value.unknown_fields(f"{path}.")
    elif isinstance(value, list) and value and isinstance(value[-1], Body):
        for index, member in enumerate(value):
            yield from _unknown_in(member, f"{path}[{index}]")


class StreamOptions(Body):
    """How a stream is told."""

    include_usage: bool | None = None


class StructuredOutputs(Body):
    """A constraint in the server's own terms; exactly one of them."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class Sampling(Body):
    """What every way of generating text takes. null is as good as absent: the model's own defaults."""

    model: str = ""
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Seed | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] | None = None
    cache_salt: str | None = None
    user: str | None = Field(None, description="Ignored.")


class Generation(Sampling):
    """What chat completions and completions take."""

    stream_options: StreamOptions | None = None
    n: Count | None = None
    max_tokens: Count | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
