"""Products on the device: a row has the same bits in any number of rows; prints their times against blocks of 64 rows and the library."""

import time
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from harness.accelerator_runs import KIND, Accelerator
from torch import Tensor

from kernels import ops
from kernels.accelerator.rows import BLOCK_ROWS, linear, linear_in_blocks

_ROWS = (1, 2, 63, 64, 65, 512, 1000)


def _tensors(accelerator: Accelerator, dtype: torch.dtype, rows: int, columns: int, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, depth), (columns, depth), (columns,)
    x, weight, bias = (torch.randn(shape, generator=generator).to(accelerator.device.torch_device, dtype) for shape in shapes)
    return x, weight, bias


@pytest.mark.skipif(KIND == "npu", reason="PyPTO has products of its own")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("columns", "depth"), [(576, 576), (100, 1000), (9000, 128)])
def test_row_has_the_same_bits_in_any_number_of_rows(accelerator: Accelerator, dtype: torch.dtype, columns: int, depth: int) -> None:
    x, weight, bias = _tensors(accelerator, dtype, max(_ROWS), columns, depth)
    whole = linear(x, weight, bias)
    for rows in _ROWS:
        assert torch.equal(linear(x[-rows:], weight, bias), whole[-rows:])
    exact = x.double() @ weight.double().T + bias.double()
    tolerance = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 1e-4}[dtype]
    torch.testing.assert_close(whole.double(), exact, rtol=tolerance, atol=tolerance * depth**0.5)


@pytest.mark.skipif(KIND == "npu", reason="PyPTO has products of its own")
@pytest.mark.parametrize("rows", [1, 64, 512, 4096])
@pytest.mark.parametrize(("columns", "depth"), [(6144, 1024), (1024, 3072), (8192, 4096)])
def test_product_against_blocks_of_rows_and_the_library(
    accelerator: Accelerator, rows: int, columns: int, depth: int, capsys: pytest.CaptureFixture[str]
) -> None:
    if not accelerator.is_real:
        rows, columns, depth = min(rows, 2 * BLOCK_ROWS), 64, 64
    x, weight, _ = _tensors(accelerator, torch.bfloat16, rows, columns, depth)
    products = {"product": linear, "blocks": linear_in_blocks, "library": F.linear}
    times = {name: _seconds(accelerator, lambda product=product: product(x, weight, None)) for name, product in products.items()}
    told = ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in times.items())
    with capsys.disabled() if accelerator.is_real else nullcontext():
        print(f"\n{ops.kernel_set(KIND)}: {rows} x {depth} times {columns} x {depth} in bf16: {told}")
    assert torch.equal(linear(x[:1], weight, None), linear(x, weight, None)[:1])


def _seconds(accelerator: Accelerator, call: Callable[[], Tensor]) -> float:
    """Mean time of a call in a row of them, after one."""
    call()
    accelerator.device.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        call()
    accelerator.device.synchronize()
    return (time.perf_counter() - begin) / 10
