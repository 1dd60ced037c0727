"""Answers of /v1/responses."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clients.gateway.errors import ApiError
from clients.gateway.parsers.answer import AnswerParser
from clients.gateway.parsers.pieces import CallArguments, CallStarted, Content, Piece, Reasoning
from clients.gateway.replies.parts import ReplyHead, StreamedReply
from clients.results import Event, Finished, FinishReason, Usage


@dataclass(slots=True)
class _Item:
    """An item of the output that is being made: a message, thoughts, or a call."""

    kind: str
    index: int
    begun: dict[str, Any]
    text: str = ""
    id: str = field(init=False)

    def __post_init__(self) -> None:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[self.kind]
        self.id = f"{prefix}_{secrets.token_hex(12)}"

    @property
    def part(self) -> dict[str, Any]:
        """The one part of a message or of thoughts."""
        if self.kind == "message":
            return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}
        return {"type": "reasoning_text", "text": self.text}

    def shape(self, status: str) -> dict[str, Any]:
        """The item as far as it has come."""
        shape = {"id": self.id, "type": self.kind, "status": status, **self.begun}
        if self.kind == "function_call":
            return shape | {"arguments": self.text}
        return shape | {"content": [self.part] if status == "completed" else []}


#: Names of the events that tell a text, by the kind of item.
_TEXTS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}


class ResponseStream(StreamedReply[Event]):
    """Turns events into those of a response, which it also holds as a whole.

    `asked`: fields of the body that come back; `parser`: None where all text is content.
    """

    def __init__(self, head: ReplyHead, asked: Mapping[str, Any], parser: AnswerParser | None, make_call_id: Callable[[], str]) -> None:
        self._head = head
        self._asked = asked
        self._parser = parser
        self._make_call_id = make_call_id
        self._output: list[dict[str, Any]] = []
        self._item: _Item | None = None
        self._num_events = 0
        self.response = self._response("in_progress")

    def begin(self) -> str:
        """The first events."""
        return self._event("response.created", response=self.response) + self._event("response.in_progress", response=self.response)

    def event(self, event: Event) -> str:
        """The events for one of the request's."""
        if isinstance(event, Finished):
            return self._pieces(self._parser.end() if self._parser else []) + self._finished(event)
        if not event.text:
            return ""
        return self._pieces(self._parser.feed(event.text) if self._parser else [Content(event.text)])

    def fail(self, error: ApiError) -> str:
        """The last event of a stream that fails."""
        self.response = self._response("failed") | {"error": {"code": "server_error", "message": error.message}}
        return self._event("response.failed", response=self.response)

    def _pieces(self, pieces: Sequence[Piece]) -> str:
        return "".join(self._piece(piece) for piece in pieces)

    def _finished(self, finished: Finished) -> str:
        told = self._end_item()
        if finished.reason is FinishReason.LENGTH:
            self.response = self._response("incomplete", finished.usage)
            return told + self._event("response.incomplete", response=self.response)
        self.response = self._response("completed", finished.usage)
        return told + self._event("response.completed", response=self.response)

    def _piece(self, piece: Piece) -> str:
        if isinstance(piece, CallStarted):
            begun = {"call_id": self._make_call_id(), "name": piece.name}
            return self._end_item() + self._begin_item("function_call", begun)
        if isinstance(piece, CallArguments):
            return self._text("function_call", {}, piece.text)
        if isinstance(piece, Reasoning):
            return self._text("reasoning", {"summary": []}, piece.text)
        return self._text("message", {"role": "assistant"}, piece.text)

    def _text(self, kind: str, begun: dict[str, Any], text: str) -> str:
        told = "" if self._item and self._item.kind == kind else self._end_item() + self._begin_item(kind, begun)
        assert self._item is not None
        self._item.text += text
        return told + self._event(f"response.{_TEXTS[kind]}.delta", **self._place(self._item), delta=text)

    def _begin_item(self, kind: str, begun: dict[str, Any]) -> str:
        item = self._item = _Item(kind, len(self._output), begun)
        told = self._event("response.output_item.added", output_index=item.index, item=item.shape("in_progress"))
        if kind == "function_call":
            return told
        return told + self._event("response.content_part.added", **self._place(item), part=item.part)

    def _end_item(self) -> str:
        item, self._item = self._item, None
        if item is None:
            return ""
        shape = item.shape("completed")
        self._output.append(shape)
        told = {"arguments": item.text, "name": item.begun["name"]} if item.kind == "function_call" else {"text": item.text}
        events = self._event(f"response.{_TEXTS[item.kind]}.done", **self._place(item), **told)
        if item.kind != "function_call":
            events += self._event("response.content_part.done", **self._place(item), part=item.part)
        return events + self._event("response.output_item.done", output_index=item.index, item=shape)

    def _place(self, item: _Item) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": item.id, "output_index": item.index}
        if item.kind != "function_call":
            place["content_index"] = 0
        if item.kind == "message":
            place["logprobs"] = []
        return place

    def _response(self, status: str, usage: Usage | None = None) -> dict[str, Any]:
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "model": self._head.model,
            "output": list(self._output),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": _usage(usage) if usage else None,
            **self._asked,
        }

    def _event(self, kind: str, **fields: Any) -> str:
        body = {"type": kind, "sequence_number": self._num_events, **fields}
        if "part" in fields:
            body.pop("logprobs", None)
        self._num_events += 1
        return f"event: {kind}\ndata: {json.dumps(body)}\n\n"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
