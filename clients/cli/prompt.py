"""Where text comes from: an argument, or standard input."""

import sys

from clients.cli.command import UsageError


def read_text(argument: str | None, name: str) -> str:
    """The argument; standard input when it is `-`, or absent with something piped in. Raises UsageError when there is neither."""
    if argument is not None and argument != "-":
        return argument
    if argument is None and sys.stdin.isatty():
        raise UsageError(f"{name}: give it as an argument, or pipe it in")
    text = sys.stdin.read()
    return text.removesuffix("\n")
