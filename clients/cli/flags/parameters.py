"""Flags of a generation, and the request fields that they give."""

import argparse
from collections.abc import Callable
from typing import Any

from clients.cli.flags.constraint import add_constraint_arguments, constraint_fields
from clients.cli.flags.template import add_template_arguments, template_fields
from pypto_serving.process import argument_types as types

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


def add_parameter_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; what is not given is left to the model's defaults."""
    group = parser.add_argument_group("generation")
    for name, kind, explanation in _NUMBERS:
        group.add_argument("--" + name.replace("_", "-"), type=kind, metavar="N" if kind is int else "X", help=explanation)
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end at this text; may be repeated")
    group.add_argument("--ignore-eos", action="store_true", default=None, help="go on after the model's end tokens")
    group.add_argument("--priority", type=int, default=0, metavar="N", help="lower runs first")
    add_constraint_arguments(parser)
    add_template_arguments(parser)


def request_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of `clients.request.Request`."""
    names = [*(name for name, _, _ in _NUMBERS), "stop", "ignore_eos", "priority"]
    return {name: getattr(arguments, name) for name in names} | constraint_fields(arguments) | template_fields(arguments)
