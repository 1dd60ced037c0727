"""Text and JSON in the files of a model directory, read at the start: what is wrong is one line that names the file."""

import json
from pathlib import Path
from typing import Any

from pypto_serving.process.start_up import StartUpError

Json = dict[str, Any]


def read_text(path: Path) -> str:
    """UTF-8 text, without the byte order mark that some editors write; raises StartUpError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise StartUpError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartUpError(f"{path}: not UTF-8 text") from None


def read_json(path: Path, required: bool = True) -> Json:
    """A JSON object; of a file that is not required and not there, an empty one. Raises StartUpError."""
    if not required and not path.exists():
        return {}
    try:
        content = json.loads(read_text(path))
    except ValueError as error:
        raise StartUpError(f"{path}: not JSON: {error}") from None
    except RecursionError:
        raise StartUpError(f"{path}: nested too deep") from None
    if not isinstance(content, dict):
        raise StartUpError(f"{path}: not a JSON object")
    return content
