"""A product and an attention on a device against the same in float64 on the host: kernels that do not compute serve nobody."""

import torch
from torch import Tensor

from kernels import ops
from kernels.reference import attention

#: Results are about 1 in size, and bfloat16 has steps of 2^-8 of that.
_TOLERANCE = 0.05


class WrongResults(RuntimeError):
    """An operator does not compute what it is to compute."""


def check_device(device: torch.device, dtype: torch.dtype, page_tokens: int) -> None:
    """Raises WrongResults with the operator and how far off it is. Compiles what it runs."""
    numbers = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=numbers).to(dtype)

    x, weight = random(5, 256), random(96, 256) / 16
    _compare("linear", ops.linear(x.to(device), weight.to(device), None), x.double() @ weight.double().T)
    pages = 3
    q, k_cache, v_cache = random(2, 4, 64), *(random(pages, page_tokens, 2, 64) for _ in range(2))
    table = torch.tensor([[2, 0], [1, -1]], dtype=torch.int32)
    starts, positions = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([page_tokens + 1, 4])
    expected = attention.paged_attention(q.double(), k_cache.double(), v_cache.double(), table, starts, positions, 64**-0.5, 0)
    q, k_cache, v_cache, table, starts, positions = (tensor.to(device) for tensor in (q, k_cache, v_cache, table, starts, positions))
    _compare("paged_attention", ops.paged_attention(q, k_cache, v_cache, table, starts, positions, 64**-0.5, 0), expected)


def _compare(operator: str, found: Tensor, expected: Tensor) -> None:
    off = (found.cpu().double() - expected).abs()
    if not bool((off <= _TOLERANCE).all()):  # NaN is not
        raise WrongResults(f"{operator} is off by up to {off.max().item():.3g} on {found.device}, where {_TOLERANCE} is allowed")
