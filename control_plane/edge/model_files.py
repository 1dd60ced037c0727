"""Files of a model directory, and what of them is read fast: a scheduler needs no more to serve."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pypto_serving.process.start_up import StartUpError
from pypto_serving.wire.fingerprint import fingerprint_model
from pypto_serving.wire.model_directory import check_directory, check_no_pointer

Json = dict[str, Any]

#: Of models whose config does not say plainly how far they reach.
UNKNOWN_MAX_POSITIONS = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What a scheduler has to know of a model before it serves; nothing of it takes long to read."""

    name: str
    fingerprint: str
    vocab_size: int
    max_positions: int  # no request has more tokens, whatever workers say later


def read_identity(directory: Path, name: str | None) -> ModelIdentity:
    """Read no more than that; arguments and errors are those of `read_model`."""
    config = read_config_json(directory)
    vocab_size = positive(directory / "config.json", config, "vocab_size")
    return ModelIdentity(name or name_of(directory), fingerprint_of(directory), vocab_size, max_positions(config))


def max_positions(config: Json) -> int:
    """The most that a worker could offer; only a bound until one does, so what we do not understand is generous."""
    positions = config.get("max_position_embeddings")
    is_scaled = config.get("rope_scaling") is not None or config.get("rope_parameters") is not None
    return positions if type(positions) is int and positions > 0 and not is_scaled else UNKNOWN_MAX_POSITIONS


def name_of(directory: Path) -> str:
    """The directory's name, or the link's; in a hub's cache, whose directories are named after commits, that of the repository."""
    path = Path(os.path.abspath(directory))
    cached = path.parent.parent.name if path.parent.name == "snapshots" else ""
    return cached.split("--")[-1] if cached.startswith("models--") else path.name


def read_text(path: Path) -> str:
    """UTF-8 text, without the byte order mark that some editors write; raises StartUpError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        check_no_pointer(path, text[:64].encode())
        return text
    except OSError as error:
        raise StartUpError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartUpError(f"{path}: not UTF-8 text") from None
    except ValueError as error:
        raise StartUpError(str(error)) from None


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


def read_config_json(directory: Path) -> Json:
    """config.json of a model directory; raises StartUpError."""
    try:
        check_directory(directory)
    except ValueError as error:
        raise StartUpError(f"--model {error}") from None
    return read_json(directory / "config.json")


def positive(path: Path, config: Json, field: str) -> int:
    """A field of a config; raises StartUpError naming file, field and value when it is no positive integer."""
    value = config.get(field)
    if type(value) is not int or value < 1:
        raise StartUpError(f"{path}: {field} = {value!r}, must be a positive integer")
    return value


def fingerprint_of(directory: Path) -> str:
    """What names the model; raises StartUpError."""
    try:
        return fingerprint_model(directory)
    except OSError as error:
        raise StartUpError(f"{error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise StartUpError(str(error)) from None
    except RecursionError:
        raise StartUpError(f"{directory}: a *.safetensors file has a header that is nested too deep") from None
