"""What a command is, and how it ends."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True, slots=True)
class Command:
    """A command; `run` returns the exit status, raises UsageError, ServingError, KeyboardInterrupt or BrokenPipeError."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class UsageError(Exception):
    """The command line makes no sense."""


class ExitCode(IntEnum):
    """Exit status of the process."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


EXPLANATION = """exit status:
  0    ok
  1    the request failed
  2    bad usage
  3    server not reachable, or not available
  130  interrupted"""
