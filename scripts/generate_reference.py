"""Writes the reference pages below docs/reference: the API from the comments of protos/, the flags of every program from its parser."""

import argparse
import sys
from pathlib import Path

# Run as a file, from any working directory.
_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT), str(_ROOT / "protos")]

from scripts.api_reference import read_protos  # noqa: E402
from scripts.flag_reference import flag_page  # noqa: E402

FOLDER = _ROOT / "docs" / "reference"
_HEAD = "<!-- Written by `make docs`. -->\n\n"


def pages() -> dict[str, str]:
    """Contents by file name."""
    api = {f"{file.name}.md": file.page() for file in read_protos(_ROOT / "protos")}
    return {name: f"{_HEAD}{text.rstrip()}\n" for name, text in {**api, "flags.md": flag_page()}.items()}


def main() -> int:
    """Command line; returns the exit status."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
