"""What runs: its version, as `--version`, GetServer and metrics report it, and the name that its help shows."""

import argparse
import importlib.metadata
import sys
from pathlib import Path

_PACKAGE = "pypto-serving"

#: Of a checkout that is not installed.
_CHECKOUT = "0+checkout"


def version() -> str:
    """The version of the installed package; of a checkout that is not installed `0+checkout`."""
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return _CHECKOUT


def program_name(module: str) -> str:
    """How this process was started: by an installed program such as pypto-serving-worker, or with `python -m MODULE`."""
    program = Path(sys.argv[0]).name
    return program if program.startswith(_PACKAGE) else f"python -m {module}"


def add_version_option(parser: argparse.ArgumentParser) -> None:
    """Add --version, which prints one line and ends the program."""
    parser.add_argument("--version", action="version", version=f"{_PACKAGE} {version()}", help="show the version and exit")
