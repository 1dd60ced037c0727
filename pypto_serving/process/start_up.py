"""The error that ends a start-up, with one line for the person who started it."""

from collections.abc import Iterator
from contextlib import contextmanager

#: Top-level packages of this project.
OUR_PACKAGES = ("control_plane", "worker", "kernels", "clients", "pypto_serving")


class StartUpError(Exception):
    """A process cannot start; the message is one line that names what is wrong.

    `exit_code` is 2 for a wrong configuration or model, and 1 for anything else.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def given_by(*flags: str) -> Iterator[None]:
    """Name the flags before what a StartUpError says of what they give."""
    try:
        yield
    except StartUpError as error:
        raise StartUpError(f"{', '.join(flags)}: {error}", error.exit_code) from None


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Raise StartUpError when something is imported that only an extra of the package installs, and that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OUR_PACKAGES:
            raise
        raise StartUpError(f"no package {error.name!r} here: pip install 'pypto-serving[{extra}]'") from None
