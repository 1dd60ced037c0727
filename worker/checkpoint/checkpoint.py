"""The files of a Hugging Face model directory."""

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pypto_serving.wire.model_directory import check_directory, check_no_pointer, describe_missing_weights
from worker.checkpoint.config_fields import ConfigFields, ModelRefused, read_json_object

_WEIGHTS, _INDEX, _CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
_FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_libc = ctypes.CDLL(None)


class Checkpoint:
    """A model directory: its config, and its tensors as views of mapped files.

    With an index only the tensors that it names are read, whatever else lies in its files or in the directory.
    """

    def __init__(self, directory: Path) -> None:
        """Open the files and read their headers; ModelRefused when one is missing, truncated or holds other tensors than the index says."""
        try:
            check_directory(directory)
        except ValueError as error:
            raise ModelRefused(str(error)) from None
        self.config = ConfigFields(directory / _CONFIG, read_json_object(directory / _CONFIG))
        self._files = _open_weights(directory)
        self._unread = set(self._files)
        self._resident: list[Tensor] = []

    def __contains__(self, name: str) -> bool:
        return name in self._files

    @property
    def unread(self) -> set[str]:
        """Names of the tensors that nobody has asked for."""
        return self._unread

    def tensor(self, name: str, shape: Iterable[int], dtypes: Sequence[torch.dtype] = _FLOATING) -> Tensor:
        """A tensor as a view of its mapped file; ModelRefused when it is missing, or has another shape or none of the types."""
        path, file = self._file(name)
        stored = tuple(file.get_slice(name).get_shape())
        if stored != (expected := tuple(shape)):
            raise ModelRefused(f"{path}: tensor {name} has shape {list(stored)}; config.json asks for {list(expected)}")
        tensor: Tensor = file.get_tensor(name)
        if tensor.dtype not in dtypes:
            wanted = "a floating point type" if dtypes is _FLOATING else " or ".join(map(str, dtypes))
            raise ModelRefused(f"{path}: tensor {name} has type {tensor.dtype}; expected {wanted}")
        self._unread.discard(name)
        self._resident.append(tensor)
        return tensor

    def close(self) -> None:
        """All is read: besides the last tensors the system gets back what copies on the way have left behind, a quarter of the weights."""
        self.release()
        if hasattr(_libc, "malloc_trim"):  # of glibc
            _libc.malloc_trim(0)

    def release(self) -> None:
        """Give the memory of the tensors read so far back to the system; without this the whole files would end up in the process.

        The tensors stay as they are: what is read once more is mapped once more.
        """
        for tensor in self._resident:
            _forget_pages(tensor)
        self._resident.clear()

    def require(self, name: str) -> None:
        """ModelRefused when the tensor is missing."""
        self._file(name)

    def _file(self, name: str) -> tuple[Path, Any]:
        if name not in self._files:
            raise ModelRefused(f"{self.config.path.parent}: tensor {name} is missing")
        return self._files[name]


def _forget_pages(tensor: Tensor) -> None:
    """Pages that a tensor shares with its neighbours go as well: they are clean, and nothing is lost."""
    first = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    end = -(-(tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


def _open_weights(directory: Path) -> dict[str, tuple[Path, Any]]:
    """Tensor name -> (file, open file)."""
    if (directory / _INDEX).exists():
        return _open_shards(directory)
    path = directory / _WEIGHTS
    if not path.exists():
        raise ModelRefused(describe_missing_weights(directory))
    file = _open(path)
    return dict.fromkeys(file.keys(), (path, file))


def _open_shards(directory: Path) -> dict[str, tuple[Path, Any]]:
    index = directory / _INDEX
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelRefused(f"{index}: weight_map is missing or empty")
    shard_of = {name: directory / str(shard) for name, shard in weight_map.items()}
    files: dict[str, tuple[Path, Any]] = {}
    for path in sorted(set(shard_of.values())):
        file = _open(path)
        for name in file.keys():  # noqa: SIM118  not a dict
            if shard_of.get(name, path) != path:
                raise ModelRefused(f"{path}: holds tensor {name}, which {_INDEX} does not place there")
            files[name] = (path, file)
    files = {name: file for name, file in files.items() if name in shard_of}
    if missing := sorted(set(shard_of) - set(files)):
        raise ModelRefused(f"{shard_of[missing[0]]}: tensor {missing[0]} is missing, which {_INDEX} places there")
    return files


def _open(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            check_no_pointer(path, file.read(64))
        return safe_open(path, framework="pt", device="cpu")
    except ValueError as error:
        raise ModelRefused(str(error)) from None
    except FileNotFoundError as error:
        raise ModelRefused(f"{path}: no such file") from error
    except (OSError, SafetensorError) as error:
        raise ModelRefused(f"{path}: truncated or corrupt, or not readable: {error}") from error
