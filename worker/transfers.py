"""Copies between the host and a device with its own stream: none of them makes the host wait for what was launched before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Tensors on their way to the host: not to be read before `wait` has returned. Any thread may wait, and more than once."""

    tensors: tuple[Tensor, ...]
    wait: Callable[[], None] | None = None  # None: they are there


#: Begins to copy tensors of the device to the host.
CopyToHost = Callable[[Sequence[Tensor]], HostCopies]


def stay_on_host(tensors: Sequence[Tensor]) -> HostCopies:
    """For a CPU, whose tensors are there already."""
    return HostCopies(tuple(tensors))


def to_device(array: npt.NDArray[np.generic], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The array on the device, converted to `dtype` on the host if one is given; on a CPU else without a copy."""
    tensor = torch.from_numpy(array)
    if dtype is not None:
        tensor = tensor.to(dtype)
    if device.type == "cpu" or not array.size:
        return tensor.to(device)
    # A copy from memory that is not pinned waits for the stream.
    return tensor.pin_memory().to(device, non_blocking=True)
