"""The version of what runs, as `--version`, GetServer and metrics report it."""

import argparse
import importlib.metadata

_PACKAGE = "pypto-serving"

#: Of a checkout that is not installed.
_CHECKOUT = "0+checkout"


def version() -> str:
    """The version of the installed package; of a checkout that is not installed `0+checkout`."""
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return _CHECKOUT


def add_version_option(parser: argparse.ArgumentParser) -> None:
    """Add --version, which prints one line and ends the program."""
    parser.add_argument("--version", action="version", version=f"{_PACKAGE} {version()}", help="show the version and exit")
