"""What a model directory says of itself, read without torch: config.json, and the heads of its safetensors."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pypto_serving.wire.model_directory import check_directory, check_no_pointer, describe_missing_weights

_MAX_HEAD_BYTES = 100 << 20
_BITS = {
    "F64": 64,
    "I64": 64,
    "F32": 32,
    "I32": 32,
    "BF16": 16,
    "F16": 16,
    "I16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
}


class ModelUnreadable(ValueError):
    """The directory holds no model that can be described; the message is one line that names the file."""


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Sizes of a decoder with grouped-query attention."""

    name: str
    architecture: str
    max_tokens: int  # of a sequence
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_parameters: int
    weights_bytes: int  # as stored
    dtypes: Mapping[str, int]  # parameters by the name that safetensors give their type

    def kv_token_bytes(self, bits: int = 16) -> int:
        """Of one token, in all layers: keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bits // 8

    def loaded_bytes(self, bits: float) -> int:
        """Of the weights with so many bits for each."""
        return math.ceil(self.num_parameters * bits / 8)


def summarize(directory: Path) -> ModelSummary:
    """Raises ModelUnreadable."""
    try:
        check_directory(directory)
        config, tensors = _config(directory), _tensors(directory)
        num_heads = _integer(config, "num_attention_heads")
        return ModelSummary(
            name=directory.resolve().name,
            architecture=_architecture(config),
            max_tokens=_integer(config, "max_position_embeddings"),
            vocab_size=_integer(config, "vocab_size"),
            num_layers=_integer(config, "num_hidden_layers"),
            num_kv_heads=_integer(config, "num_key_value_heads", num_heads),
            head_dim=_integer(config, "head_dim", _integer(config, "hidden_size") // num_heads),
            num_parameters=sum(tensors.values()),
            weights_bytes=sum(count * _BITS.get(dtype, 8) // 8 for dtype, count in tensors.items()),
            dtypes=tensors,
        )
    except OSError as error:
        raise ModelUnreadable(f"{error.filename or directory}: {error.strerror}") from None
    except ValueError as error:
        raise ModelUnreadable(str(error)) from None


def _config(directory: Path) -> dict[str, Any]:
    config = _json_object(directory / "config.json")
    return {**config, **config.get("text_config", {})} if isinstance(config.get("text_config", {}), dict) else config


def _json_object(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    check_no_pointer(path, content)
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: not a JSON object")
    return value


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not (isinstance(names, list) and len(names) == 1 and isinstance(names[0], str)):
        raise ValueError(f"config.json: architectures is {names!r}; expected a list of one name")
    return names[0]


def _integer(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"config.json: {name} is {value!r}; expected a whole number of at least 1")
    return value


def _tensors(directory: Path) -> dict[str, int]:
    """Parameters by type; raises ValueError where a file or a part of it is missing."""
    sums: dict[str, int] = {}
    for file in _files(directory):
        for dtype, count in _head(file):
            sums[dtype] = sums.get(dtype, 0) + count
    return sums


def _files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        single = directory / "model.safetensors"
        if not single.is_file():
            raise ValueError(describe_missing_weights(directory))
        return [single]
    names = _json_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index}: weight_map is no object of file names")
    missing = sorted({name for name in names.values() if not (directory / name).is_file()})
    if missing:
        raise ValueError(f"{directory}: {len(missing)} files of weights are missing, such as {missing[0]}")
    return sorted({directory / name for name in names.values()})


def _head(path: Path) -> Iterator[tuple[str, int]]:
    """Type and number of elements of each tensor."""
    with path.open("rb") as file:
        start = file.read(64)
        check_no_pointer(path, start)
        length = int.from_bytes(start[:8], "little")
        if not 2 <= length <= _MAX_HEAD_BYTES:
            raise ValueError(f"{path}: not a safetensors file")
        file.seek(8)
        try:
            head = json.loads(file.read(length))
            tensors = [head[name] for name in head if name != "__metadata__"]
            end = max((tensor["data_offsets"][1] for tensor in tensors), default=0)
            found = [(str(tensor["dtype"]), math.prod(tensor["shape"])) for tensor in tensors]
        except (ValueError, TypeError, KeyError, IndexError):
            raise ValueError(f"{path}: not a safetensors file") from None
    if path.stat().st_size < 8 + length + end:
        raise ValueError(f"{path}: {8 + length + end - path.stat().st_size} bytes short: was it copied to its end?")
    yield from found
