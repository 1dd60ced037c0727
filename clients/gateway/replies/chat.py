"""Answers of /v1/chat/completions."""

import json
from collections.abc import Callable, Sequence

from clients.gateway.parsers.answer import AnswerParser
from clients.gateway.parsers.pieces import CallArguments, CallStarted, Content, Piece, Reasoning
from clients.gateway.replies.parts import DONE, ReplyHead, StreamedReply, UsageSum, logprob_shapes, quoted, usage_shape
from clients.gateway.replies.shapes import ChatChoice, ChatCompletion, MessageShape, ToolCallShape
from clients.results import Choice, Completion, Delta, Event, Finished, FinishReason, TokenLogprob

#: Makes the parser of a choice; None: its text is all content.
MakeParser = Callable[[], AnswerParser | None]
MakeId = Callable[[], str]


class ChatStream(StreamedReply[Event]):
    """Turns the events of a request into those of an SSE stream."""

    def __init__(self, head: ReplyHead, num_choices: int, make_parser: MakeParser, make_call_id: MakeId, include_usage: bool) -> None:
        self._begin = "data: {" + head.json("chat.completion.chunk")
        self._usage_null = ',"usage":null' if include_usage else ""
        self._include_usage = include_usage
        self._make_call_id = make_call_id
        self._usage = UsageSum()
        self._parsers = [make_parser() for _ in range(num_choices)]
        self._has_calls = [False] * num_choices
        self._before_text = [f'{self._begin},"choices":[{{"index":{index},"delta":{{"content":' for index in range(num_choices)]
        self._behind_text = f'}},"logprobs":null,"finish_reason":null}}]{self._usage_null}}}\n\n'

    def begin(self) -> str:
        """The first event of every choice, which says who speaks."""
        return "".join(self._chunk(index, '{"role":"assistant","content":""}') for index in range(len(self._parsers)))

    def event(self, event: Event) -> str:
        """The events for one of the request's; none while a text may turn out to be part of a marker."""
        if isinstance(event, Delta):
            return self._delta(event)
        return self._finished(event) if isinstance(event, Finished) else ""

    def end(self) -> str:
        """The last events."""
        if not self._include_usage:
            return DONE
        usage = json.dumps(usage_shape(self._usage.total))
        return f'{self._begin},"choices":[],"usage":{usage}}}\n\n{DONE}'

    def _delta(self, delta: Delta) -> str:
        parser = self._parsers[delta.choice]
        if not delta.logprobs and parser is None:
            return f"{self._before_text[delta.choice]}{quoted(delta.text)}{self._behind_text}" if delta.text else ""
        pieces = parser.feed(delta.text) if parser else [Content(delta.text)]
        return self._pieces(delta.choice, pieces, delta.logprobs)

    def _pieces(self, index: int, pieces: Sequence[Piece], logprobs: Sequence[TokenLogprob] = ()) -> str:
        """The pieces; the first one has the log probabilities, also of text that is kept yet."""
        deltas = [self._delta_json(index, piece) for piece in pieces] or (['{"content":""}'] if logprobs else [])
        told = json.dumps({"content": logprob_shapes(logprobs)}) if logprobs else "null"
        return "".join(self._chunk(index, delta, told if place == 0 else "null") for place, delta in enumerate(deltas))

    def _delta_json(self, index: int, piece: Piece) -> str:
        match piece:
            case Content(text):
                return f'{{"content":{quoted(text)}}}'
            case Reasoning(text):
                return f'{{"reasoning_content":{quoted(text)}}}'
            case CallStarted(call, name):
                self._has_calls[index] = True
                function = f'{{"name":{quoted(name)},"arguments":""}}'
                return f'{{"tool_calls":[{{"index":{call},"id":"{self._make_call_id()}","type":"function","function":{function}}}]}}'
            case CallArguments(call, text):
                return f'{{"tool_calls":[{{"index":{call},"function":{{"arguments":{quoted(text)}}}}}]}}'

    def _finished(self, finished: Finished) -> str:
        self._usage.add(finished)
        parser = self._parsers[finished.choice]
        rest = self._pieces(finished.choice, parser.end()) if parser else ""
        reason = finish_reason(finished.reason, self._has_calls[finished.choice])
        return rest + self._chunk(finished.choice, "{}", "null", f'"{reason}"')

    def _chunk(self, index: int, delta: str, logprobs: str = "null", reason: str = "null") -> str:
        choice = f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}}}'
        return f'{self._begin},"choices":[{choice}]{self._usage_null}}}\n\n'


def finish_reason(reason: FinishReason, has_calls: bool) -> str:
    """OpenAI's word for the end of a choice."""
    return "tool_calls" if has_calls and reason is FinishReason.STOP else str(reason)


def chat_completion(head: ReplyHead, completion: Completion, make_parser: MakeParser, make_call_id: MakeId) -> ChatCompletion:
    """The whole answer."""
    return {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
        "choices": [_choice(choice, make_parser(), make_call_id) for choice in completion.choices],
        "usage": usage_shape(completion.usage),
    }


def _choice(choice: Choice, parser: AnswerParser | None, make_call_id: MakeId) -> ChatChoice:
    pieces = parser.feed(choice.text) + parser.end() if parser else [Content(choice.text)]
    message = whole_message(pieces, make_call_id)
    logprobs = logprob_shapes(choice.logprobs)
    return {
        "index": choice.index,
        "message": message,
        "logprobs": {"content": logprobs} if logprobs else None,
        "finish_reason": finish_reason(choice.finish_reason, "tool_calls" in message),
    }


def whole_message(pieces: Sequence[Piece], make_call_id: MakeId) -> MessageShape:
    """The turn that pieces make; beside calls an empty content is none."""
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    calls: list[ToolCallShape] = []
    for piece in pieces:
        if isinstance(piece, CallStarted):
            calls.append({"id": make_call_id(), "type": "function", "function": {"name": piece.name, "arguments": ""}})
        elif isinstance(piece, CallArguments):
            calls[piece.index]["function"]["arguments"] += piece.text
    message: MessageShape = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message
