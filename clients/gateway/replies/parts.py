"""Parts of several answers."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from typing import Generic, TypeVar

from clients.gateway.errors import ApiError
from clients.gateway.replies.shapes import LogprobShape, TopLogprobShape, UsageShape
from clients.results import Finished, Started, TokenLogprob, TopLogprob, Usage

DONE = "data: [DONE]\n\n"

E = TypeVar("E")

#: JSON of a text, in ASCII: half a character, which UTF-8 has not, comes through.
quoted = encode_basestring_ascii


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every event of an answer says."""

    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, reply_id: str, started: Started) -> "ReplyHead":
        return cls(reply_id, started.model, f"fp_{started.model_fingerprint[:16]}")

    def json(self, kind: str) -> str:
        """The fields as JSON, without brackets."""
        fingerprint = quoted(self.fingerprint)
        return (
            f'"id":{quoted(self.id)},"object":"{kind}","created":{self.created},'
            f'"model":{quoted(self.model)},"system_fingerprint":{fingerprint}'
        )


class StreamedReply(ABC, Generic[E]):
    """Turns events of control planes into those of an SSE stream, as text; an empty one is none."""

    def begin(self) -> str:
        """The first events."""
        return ""

    @abstractmethod
    def event(self, event: E) -> str:
        """The events for one."""

    def end(self) -> str:
        """The last events."""
        return ""

    def fail(self, error: ApiError) -> str:
        """The last event of a stream that fails: an error, and no [DONE]."""
        return f"data: {json.dumps(error.body)}\n\n"


def usage_shape(usage: Usage) -> UsageShape:
    """Token counts."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class UsageSum:
    """Adds up the choices of one prompt, or of several."""

    def __init__(self) -> None:
        self._prompts: dict[int, Finished] = {}
        self._completion_tokens = 0

    def add(self, finished: Finished, prompt: int = 0) -> None:
        """Count a choice that has ended; `prompt` is the index of its prompt."""
        if prompt not in self._prompts or finished.choice == 0:
            self._prompts[prompt] = finished
        self._completion_tokens += finished.usage.completion_tokens

    @property
    def total(self) -> Usage:
        """The sum; each prompt counts once."""
        prompts = [finished.usage for finished in self._prompts.values()]
        prompt_tokens, cached = sum(usage.prompt_tokens for usage in prompts), sum(usage.cached_tokens for usage in prompts)
        return Usage(prompt_tokens, self._completion_tokens, cached)


def token_text(token: bytes) -> str:
    """The text of a token; one that is no text by itself is told in escapes, as OpenAI does it."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def logprob_shapes(entries: Iterable[TokenLogprob]) -> list[LogprobShape]:
    """Log probabilities of an answer's tokens."""
    return [
        {
            "token": token_text(entry.token),
            "logprob": entry.logprob if entry.logprob is not None else 0.0,
            "bytes": list(entry.token),
            "top_logprobs": [_top_shape(top) for top in entry.top],
        }
        for entry in entries
    ]


def _top_shape(top: TopLogprob) -> TopLogprobShape:
    return {"token": token_text(top.token), "logprob": top.logprob, "bytes": list(top.token)}
