"""Matrix products whose rows do not depend on their number: Triton's where there is Triton, else of always the same number of rows."""

import functools
import importlib
import importlib.util
import logging
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

_log = logging.getLogger(__name__)

# So many rows take hardly longer than one: reading the weights does.
BLOCK_ROWS = 64


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, K] -> x @ weight.T + bias [T, N]; no row depends on the others."""
    if x.is_cuda and (written := triton_products()) is not None:
        return written.linear(x, weight, bias)  # type: ignore[no-any-return]
    return linear_in_blocks(x, weight, bias)


def linear_in_blocks(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear`, a block of rows at a time: the library sees one shape only, and picks one kernel for it."""
    num_rows = x.shape[0]
    padded = F.pad(x, (0, 0, 0, -num_rows % BLOCK_ROWS))
    products = [F.linear(block, weight, bias) for block in torch.split(padded, BLOCK_ROWS)]
    return (products[0] if len(products) == 1 else torch.cat(products))[:num_rows]


@functools.cache
def triton_products() -> ModuleType | None:
    """The products written in Triton, which comes with the CUDA build of torch; None where it is missing or does not work."""
    if not torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return None
    try:
        products = importlib.import_module("kernels.accelerator.triton_products")
        products.linear(torch.zeros(1, 16, device="cuda"), torch.zeros(16, 16, device="cuda"), None)
    except Exception as error:  # Triton compiles with a C compiler and a driver that it has to find
        _log.warning("no Triton products: slower ones serve, 64 rows at a time", extra={"reason": f"{type(error).__name__}: {error}"})
        return None
    return products
