"""Values of flags that may stand in a file."""

import argparse
from pathlib import Path


def text_or_file(argument: str) -> str:
    """The argument, or with @ before it the text of the file that it names."""
    return read_file(argument[1:]) if argument.startswith("@") else argument


def read_file(path: str) -> str:
    """The text of a file; raises ArgumentTypeError naming it when that can not be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{path}: not UTF-8") from None
