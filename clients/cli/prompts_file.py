"""The prompts of `batch`: one JSON object a line."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clients.cli.command import UsageError
from clients.cli.request_flags import tool

if TYPE_CHECKING:
    from clients.request import Request

#: What names a line: its `id`, or else its number.
PromptId = str | int


@dataclass(frozen=True, slots=True)
class Prompt:
    """A line: the request that it asks for, or the problem with it."""

    id: PromptId
    request: "Request | None" = None
    problem: str = ""


def read_prompts(source: str, defaults: Mapping[str, Any]) -> list[Prompt]:
    """The prompts of a file, or with - of standard input; `defaults` are fields that a line may have itself.

    Raises UsageError where the file cannot be read, or two lines have the same id.
    """
    prompts: list[Prompt] = []
    lines: dict[PromptId, int] = {}
    for number, line in enumerate(_read(source).split("\n"), start=1):
        if not line.strip():
            continue
        prompt = _prompt(number, line, defaults)
        if prompt.id in lines:
            raise UsageError(
                f"{source}:{number}: id {json.dumps(prompt.id)} is that of line {lines[prompt.id]} as well; each needs its own"
            )
        lines[prompt.id] = number
        prompts.append(prompt)
    return prompts


def _read(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{source}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{source}: not UTF-8") from None


def _prompt(number: int, line: str, defaults: Mapping[str, Any]) -> Prompt:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Prompt(number, problem=f"line {number} is not JSON: {error}")
    if not isinstance(given, dict):
        return Prompt(number, problem=f"line {number} is not a JSON object, such as {json.dumps({'prompt': '...'})}")
    name = given.pop("id", None)
    if name is None:
        name = number
    if not isinstance(name, str | int) or isinstance(name, bool):
        return Prompt(number, problem=f"id: {json.dumps(name)} is neither text nor an integer")
    try:
        return Prompt(name, request=_request({**defaults, **given}))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        return Prompt(name, problem=str(error))


def _request(given: dict[str, Any]) -> "Request":
    """Raises ValueError, TypeError, KeyError or AttributeError for what is no field, or not of its form."""
    from clients.request import Request

    known = [field.name for field in fields(Request)]
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise ValueError(f"{name}: a request has no such field" + (f"; is it {near[0]}?" if near else ""))
    if given.get("tools"):
        given["tools"] = [tool(entry) for entry in _list_of_objects(given, "tools")]
    if given.get("messages") is not None:
        given["messages"] = [_message(message) for message in _list_of_objects(given, "messages")]
    if given.get("logit_bias"):
        given["logit_bias"] = {int(token_id): bias for token_id, bias in given["logit_bias"].items()}  # JSON has text for keys
    return Request(**given)


def _list_of_objects(given: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = given[name]
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"{name}: must be a list of objects")
    return value


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """With its tool calls, written as OpenAI does, as ours."""
    from clients.conversation import ToolCall

    if not message.get("tool_calls"):
        return message
    calls = [(call, call.get("function", call)) for call in _list_of_objects(message, "tool_calls")]
    return {**message, "tool_calls": [ToolCall(call["id"], called["name"], called["arguments"]) for call, called in calls]}
