"""Tokenized text."""

from collections.abc import Sequence
from dataclasses import dataclass

from clients.conversation import MessageLike, chat_prompt
from clients.errors import invalid
from pypto_serving.inference.v1 import inference_pb2 as pb


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids; `spans` are (start, end) of each in code points of the text, empty unless asked for."""

    token_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    max_model_len: int

    @classmethod
    def from_wire(cls, response: pb.TokenizeResponse) -> "Tokens":
        spans = tuple(zip(response.starts, response.ends, strict=True))
        return cls(tuple(response.token_ids), spans, response.max_model_len)


def tokenize_request(
    text: str | None, messages: Sequence[MessageLike] | None, add_special_tokens: bool | None, with_offsets: bool
) -> pb.TokenizeRequest:
    """Exactly one of `text` and `messages` is given, else ServingError (INVALID_ARGUMENT)."""
    if (text is None) == (messages is None):
        raise invalid("give exactly one of text and messages")
    request = pb.TokenizeRequest(add_special_tokens=add_special_tokens, with_offsets=with_offsets)
    if text is not None:
        request.text = text
    else:
        request.chat.CopyFrom(chat_prompt(messages or ()))
    return request


def detokenize_request(token_ids: Sequence[int], skip_special_tokens: bool) -> pb.DetokenizeRequest:
    """Raises ServingError (INVALID_ARGUMENT) when an id is no uint32."""
    try:
        return pb.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
    except (TypeError, ValueError) as error:
        raise invalid(f"token_ids: {error}") from error
