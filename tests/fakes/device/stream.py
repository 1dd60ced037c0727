"""A device with its own stream, played by the CPU: its tensors cannot be read by the host, and what is copied there comes late."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from worker.batch import Batch, Hidden
from worker.kv_cache import CacheGroupSpec, KVCache
from worker.transfers import HostCopies

_READS: set[Callable[..., Any]] = {
    getattr(Tensor, name)
    for name in (
        *("numpy", "tolist", "item", "cpu", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__", "is_nonzero"),
        *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount", "equal", "allclose"),
    )
} | {torch.nonzero, torch.argwhere, torch.masked_select, torch.unique, torch.bincount, torch.equal, torch.allclose, torch.is_nonzero}
_IS_CPU = Tensor.is_cpu.__get__  # type: ignore[attr-defined]


class DeviceTensor(Tensor):
    """What is computed from one is one, and asking for a value of one, or for a shape that depends on values, is an error."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _IS_CPU:
            return False
        assert func not in _READS, f"the host waits for the device: {func}"
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            masks = [index for index in indices if isinstance(index, Tensor) and index.dtype == torch.bool]
            assert not masks, "the host waits for the device: an index by a mask"
        return super().__torch_function__(func, types, args, kwargs)


def off_device(tensor: Tensor) -> Tensor:
    """The tensor as the host sees it; for those who play the device."""
    return tensor.as_subclass(Tensor)


class StreamModel:
    """Another model, on the device."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def cache_groups(self) -> Sequence[CacheGroupSpec]:
        """The model's."""
        return self._model.cache_groups

    def forward(self, batch: Batch, cache: KVCache) -> Hidden:
        """As the model does."""
        return Hidden(*(tensor.as_subclass(DeviceTensor) for tensor in self._model.forward(batch, cache)))

    def logits(self, rows: Tensor) -> Tensor:
        """As the model does."""
        return self._model.logits(off_device(rows)).as_subclass(DeviceTensor)


class LateCopies:
    """Copies to the host that hold nothing of use before somebody has waited for them."""

    def __call__(self, tensors: Sequence[Tensor]) -> HostCopies:
        """Copies of `tensors`, wrong until `wait` was called; a worker.transfers.CopyToHost."""
        values = [off_device(tensor).clone() for tensor in tensors]
        buffers = tuple(torch.full_like(value, 1 if value.dtype == torch.bool else 7_777_777) for value in values)

        @torch.inference_mode()
        def wait() -> None:
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)

        return HostCopies(buffers, wait)
