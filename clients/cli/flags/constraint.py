"""Flags that restrict the output to a language."""

import argparse
from typing import Any

from clients.cli.flags.text_file import text_or_file

_FLAGS = (
    ("--json-schema", "TEXT|@FILE", "generate JSON that fits this schema"),
    ("--regex", "TEXT|@FILE", "generate text that this regular expression matches as a whole"),
    ("--grammar", "TEXT|@FILE", "generate text of this grammar, in Lark notation"),
)


def add_constraint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags, at most one of which can be given."""
    group = parser.add_argument_group("constraint", "at most one; @FILE reads it from a file").add_mutually_exclusive_group()
    for flag, metavar, explanation in _FLAGS:
        group.add_argument(flag, type=text_or_file, metavar=metavar, help=explanation)
    group.add_argument("--alternative", action="append", metavar="TEXT", help="generate this text or another one of them; repeat it")


def constraint_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of `clients.request.Request`."""
    return {
        "json_schema": arguments.json_schema,
        "regex": arguments.regex,
        "grammar": arguments.grammar,
        "alternatives": arguments.alternative,
    }
