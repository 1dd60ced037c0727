"""What a command is, and how it ends."""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import ClassVar


class Command(ABC):
    """A command of the command line."""

    name: ClassVar[str]
    summary: ClassVar[str]
    examples: ClassVar[tuple[str, ...]] = ()  # what may stand behind its name
    asks_a_server: ClassVar[bool] = True
    is_for_operators: ClassVar[bool] = False  # asks the admin service
    connect_seconds: ClassVar[float] = 2.0  # until a server that does not answer is given up, unless a flag says otherwise

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what the command takes besides the connection."""

    @abstractmethod
    def run(self, arguments: argparse.Namespace) -> int:
        """Run, and return the exit status. Raises UsageError, OutputFailed, ServingError, KeyboardInterrupt or BrokenPipeError."""


class UsageError(Exception):
    """The command line makes no sense."""


class OutputFailed(Exception):
    """The file that a flag names could not be written."""


@contextmanager
def writes(flag: str, path: Path) -> Iterator[None]:
    """Raise OutputFailed for what cannot be written to the file that a flag names."""
    try:
        yield
    except OSError as error:
        raise OutputFailed(f"{flag}: {path}: {error.strerror}") from None


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
