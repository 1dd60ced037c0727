"""Sums whose order is written down."""

import torch.nn.functional as F
from torch import Tensor


def sum_features(x: Tensor) -> Tensor:
    """x [.., H] -> [.., 1]: the second half is added to the first until one element is left."""
    width = next_power_of_two(x.shape[-1])
    if width != x.shape[-1]:
        x = F.pad(x, (0, width - x.shape[-1]))
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return x


def sum_keys(x: Tensor) -> Tensor:
    """x [T, L, ..] for a power of two L -> [T, ..]: neighbours are added until one element is left; zeros at the end change nothing."""
    while x.shape[1] > 1:
        x = x[:, 0::2] + x[:, 1::2]
    return x.squeeze(1)


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is not less than a positive `value`."""
    return 1 << (value - 1).bit_length()
