"""Fingerprint of a model directory, computed by the control plane and by every worker.

It is a SHA-256 over config.json and, of each safetensors file that belongs to the model in order of name, its size, its header (names,
types and shapes of all tensors) and a few evenly spaced bytes of every tensor. The files are those that model.safetensors.index.json
names, or else model.safetensors: what lies beside them changes nothing. It tells checkpoints apart within milliseconds, whatever their
size; it is no protection against somebody who forges one.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pypto_serving.wire.model_directory import check_no_pointer, describe_missing_weights

_BLOCK_BYTES = 64
_BLOCKS_PER_TENSOR = 4
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


def fingerprint_model(directory: Path) -> str:
    """Fingerprint of the model in `directory`: 32 hexadecimal digits.

    Raises OSError when a file cannot be read, and ValueError naming the file when it is no safetensors file, or no index of some.
    """
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for path in weight_files(directory):
        num_bytes = path.stat().st_size
        digest.update(num_bytes.to_bytes(8, "little"))
        with path.open("rb") as file:
            check_no_pointer(path, file.peek(64))
            try:
                for part in _parts(file, num_bytes):
                    digest.update(part)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                raise ValueError(f"{path}: not a safetensors file: {error}") from None
    return digest.hexdigest()[:32]


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that belong to the model in `directory`; raises as `fingerprint_model`."""
    index, whole = directory / "model.safetensors.index.json", directory / "model.safetensors"
    if not index.exists() and not whole.exists():
        raise ValueError(describe_missing_weights(directory))
    if not index.exists():
        return [whole]
    try:
        return sorted({directory / str(name) for name in json.loads(index.read_bytes())["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index}: not an index of safetensors files: {error}") from None


def _parts(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    """The header, then blocks of every tensor. Layout of a file: size of the header (uint64), header (JSON), data."""
    header_bytes = int.from_bytes(file.read(8), "little")
    if header_bytes > _MAX_HEADER_BYTES:
        raise ValueError(f"its header would have {header_bytes} bytes")
    header = file.read(header_bytes)
    yield header
    for name, tensor in sorted(json.loads(header).items()):
        if name != "__metadata__":
            begin, end = (8 + header_bytes + offset for offset in tensor["data_offsets"])
            if end > num_bytes:
                raise ValueError(f"truncated: it has {num_bytes} bytes, tensor {name} ends at {end}")
            for block in range(_BLOCKS_PER_TENSOR):
                file.seek(begin + (end - begin) * block // _BLOCKS_PER_TENSOR)
                yield file.read(min(_BLOCK_BYTES, end - begin))
