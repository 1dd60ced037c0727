"""Flags of a generation, and the fields of `clients.request.Request` that they give."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pypto_serving.process import argument_types as types

if TYPE_CHECKING:
    from clients.conversation import TemplateValue, Tool

_NUMBERS: tuple[tuple[str, Callable[[str], float], str], ...] = (
    ("max_tokens", int, "most tokens to generate (default: up to the context limit)"),
    ("min_tokens", int, "tokens before anything may stop the text"),
    ("temperature", types.number, "0 always takes the most likely token"),
    ("top_p", types.number, "keep the most likely tokens up to this probability"),
    ("top_k", int, "keep this many of the most likely tokens"),
    ("min_p", types.number, "keep tokens at least this likely, relative to the most likely one"),
    ("repetition_penalty", types.number, "above 1 discourages what occurs in prompt and output"),
    ("presence_penalty", types.number, "subtracted from tokens that occur in the output"),
    ("frequency_penalty", types.number, "subtracted once per occurrence in the output"),
    ("seed", int, "same seed, same text"),
    ("timeout", types.positive_seconds, "seconds for the whole request"),
)

_CONSTRAINTS = (
    ("--json-schema", "generate JSON that fits this schema"),
    ("--regex", "generate text that this regular expression matches as a whole"),
    ("--grammar", "generate text of this grammar, in Lark notation"),
)

_TOOLS_FORM = 'a JSON list such as [{"type": "function", "function": {"name": "add", "description": "...", "parameters": {...}}}]'
_DOCUMENTS_FORM = 'a JSON list of objects such as [{"title": "...", "text": "..."}], with the fields that the template knows'


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; what is not given is left to the model's defaults."""
    group = parser.add_argument_group("generation")
    for name, kind, explanation in _NUMBERS:
        group.add_argument("--" + name.replace("_", "-"), type=kind, metavar="N" if kind is int else "X", help=explanation)
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end at this text; may be repeated")
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on after the model's end tokens")
    group.add_argument("--priority", type=int, default=0, metavar="N", help="lower runs first; one level is worth ten seconds of waiting")
    _add_constraint_arguments(parser)
    _add_template_arguments(parser)


def _add_constraint_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("constraint", "at most one; @FILE reads it from a file").add_mutually_exclusive_group()
    for flag, explanation in _CONSTRAINTS:
        group.add_argument(flag, type=_text_or_file, metavar="TEXT|@FILE", help=explanation)
    group.add_argument("--alternative", action="append", metavar="TEXT", help="generate this text or another one of them; repeat it")


def _add_template_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("chat template")
    group.add_argument("--tools", type=_tools, metavar="FILE", help=f"tools to offer to the model: {_TOOLS_FORM}")
    group.add_argument("--documents", type=_documents, metavar="FILE", help=f"documents to answer from: {_DOCUMENTS_FORM}")
    group.add_argument("--literal-text", action="store_true", help="special tokens that the prompt spells out are only text")
    group.add_argument(
        "--template-arg",
        type=_template_argument,
        action="append",
        metavar="KEY=VALUE",
        help='argument of the template, such as enable_thinking=false; the value is JSON (true, ["a"]) or else text; may be repeated',
    )


def request_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of `clients.request.Request`; those of a chat template only where a flag was given."""
    names = [*(name for name, _, _ in _NUMBERS), "stop", "ignore_eos", "priority", "json_schema", "regex", "grammar"]
    fields = {name: getattr(arguments, name) for name in names} | {"alternatives": arguments.alternative}
    template = {"tools": arguments.tools, "documents": arguments.documents, "literal_text": arguments.literal_text}
    template["template_arguments"] = dict(arguments.template_arg or ())
    return fields | {name: value for name, value in template.items() if value}


def _tools(path: str) -> "list[Tool]":
    try:
        return [tool(entry) for entry in json.loads(_read_file(path))]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise argparse.ArgumentTypeError(f"{path}: must be {_TOOLS_FORM}") from None


def _documents(path: str) -> "list[dict[str, TemplateValue]]":
    try:
        documents = json.loads(_read_file(path))
    except ValueError:
        documents = None
    if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
        raise argparse.ArgumentTypeError(f"{path}: must be {_DOCUMENTS_FORM}")
    return documents


def tool(entry: dict[str, Any]) -> "Tool":
    """A tool as OpenAI writes it; raises KeyError or AttributeError for what is none."""
    from clients.conversation import Tool

    function = entry.get("function", entry)
    schema = function.get("parameters")
    schema_text = "" if schema is None else json.dumps(schema, ensure_ascii=False)
    return Tool(str(function["name"]), str(function.get("description", "")), schema_text)


def _template_argument(argument: str) -> "tuple[str, TemplateValue]":
    name, separator, text = argument.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError(f"{argument!r} is not KEY=VALUE")
    try:
        return name, json.loads(text)
    except (ValueError, RecursionError):
        return name, text


def _text_or_file(argument: str) -> str:
    """The argument, or with @ before it the text of the file that it names."""
    return _read_file(argument[1:]) if argument.startswith("@") else argument


def _read_file(path: str) -> str:
    """The text of a file; raises ArgumentTypeError naming it when that cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{path}: not UTF-8") from None
