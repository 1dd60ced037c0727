"""Flags of what a chat template is given beside the messages."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from clients.cli.flags.text_file import read_file

if TYPE_CHECKING:
    from clients.conversation import TemplateValue, Tool

_TOOLS_FORM = 'a JSON list such as [{"type": "function", "function": {"name": "add", "description": "...", "parameters": {...}}}]'
_DOCUMENTS_FORM = 'a JSON list of objects such as [{"title": "...", "text": "..."}], with the fields that the template knows'


def add_template_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --tools, --documents, --template-arg and --literal-text."""
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


def template_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of `clients.request.Request`; empty unless a flag was given."""
    fields = {"tools": arguments.tools, "documents": arguments.documents, "literal_text": arguments.literal_text}
    fields["template_arguments"] = dict(arguments.template_arg or ())
    return {name: value for name, value in fields.items() if value}


def _tools(path: str) -> "list[Tool]":
    try:
        return [_tool(entry) for entry in json.loads(read_file(path))]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise argparse.ArgumentTypeError(f"{path}: must be {_TOOLS_FORM}") from None


def _documents(path: str) -> "list[dict[str, TemplateValue]]":
    try:
        documents = json.loads(read_file(path))
    except ValueError:
        documents = None
    if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
        raise argparse.ArgumentTypeError(f"{path}: must be {_DOCUMENTS_FORM}")
    return documents


def _tool(entry: dict[str, Any]) -> "Tool":
    from clients.conversation import Tool

    function = entry.get("function", entry)
    return Tool(str(function["name"]), str(function.get("description", "")), _schema_text(function.get("parameters")))


def _schema_text(schema: object) -> str:
    return "" if schema is None else json.dumps(schema, ensure_ascii=False)


def _template_argument(argument: str) -> "tuple[str, TemplateValue]":
    name, separator, text = argument.partition("=")
    if not (name and separator):
        raise argparse.ArgumentTypeError(f"{argument!r} is not KEY=VALUE")
    try:
        return name, json.loads(text)
    except (ValueError, RecursionError):
        return name, text
