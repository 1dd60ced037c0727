"""What every command module offers."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command; `run` returns the exit status, raises UsageError, ServingError, KeyboardInterrupt or BrokenPipeError."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class UsageError(Exception):
    """The command line makes no sense."""
