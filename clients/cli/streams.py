"""Standard input, output and error as the commands expect them, however the process was started."""

import io
import os
import sys
from collections.abc import Sequence

from clients.cli.command import UsageError


def prepare() -> None:
    """Escape what the terminal cannot show, refuse input that is no text, and take closed standard input and error for empty ones."""
    # A stream that was closed before the start is None.
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115  open as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        raise OSError("standard output is closed")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="strict")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def notice_format() -> str:
    """How log lines look. Where they go to the same place as answers they begin on a line of their own, in the middle of a text too."""
    try:
        is_same = os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # no files of the system, but a test's
        is_same = False
    return "\n[%(message)s]" if is_same else "[%(message)s]"


def check_text(arguments: Sequence[str]) -> None:
    """Raise UsageError for an argument whose bytes are no text."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"argument {argument!r} is not UTF-8") from None


def read_text(argument: str | None, name: str) -> str:
    """The argument; standard input when it is `-`, or absent with something piped in. Raises UsageError when there is neither."""
    if argument is not None and argument != "-":
        return argument
    if argument is None and sys.stdin.isatty():
        raise UsageError(f"{name}: give it as an argument, or pipe it in")
    text = sys.stdin.read()
    if argument is None and not text:
        raise UsageError(f"{name}: there is none, and standard input is empty")
    return text.removesuffix("\n")


def discard_output() -> None:
    """Send what Python still flushes at exit nowhere: nobody reads it, or it cannot be written."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
