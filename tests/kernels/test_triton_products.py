"""The Triton products: numbers and batch invariance in Triton's interpreter, and that they compile for devices that are not here.

The interpreter rounds to bfloat16 towards zero: hence tolerances of a bit.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

if importlib.util.find_spec("triton") is None or torch.cuda.is_available():
    pytest.skip("Triton is missing, or compiles", allow_module_level=True)

from fakes.device.graphs import capturable
from triton.runtime import interpreter

from kernels.accelerator import triton_products as products
from kernels.reference import moe

_ROWS = (1, 2, products.BLOCK_ROWS - 1, products.BLOCK_ROWS, products.BLOCK_ROWS + 1, 3 * products.BLOCK_ROWS + 5)
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture(params=list(_TOLERANCE), ids=["fp32", "bf16", "fp16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def _product_in_order(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating], dtype: npt.DTypeLike) -> npt.NDArray[np.floating]:
    """a [M, K] @ b [K, N], added in order of depth."""
    return (a.astype(dtype)[:, :, None] * b.astype(dtype)).sum(axis=1)


@pytest.fixture(autouse=True)
def tiles_multiply_as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a row stands in a tile decides nothing; it does in NumPy's products on some CPUs, which Triton's interpreter takes."""
    monkeypatch.setattr(interpreter.np, "matmul", _product_in_order)


def _assert_close(ours: Tensor, exact: Tensor) -> None:
    tolerance = _TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance * float(exact.abs().max()) * 0.1)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_rows", "num_columns", "depth"), [(1, 33, 70), (130, 32, 64), (5, 70, 1)])
def test_product_is_that_of_exact_arithmetic(random, num_rows, num_columns, depth, has_bias):
    x, weight, bias = random(num_rows, depth), random(num_columns, depth), random(num_columns) if has_bias else None
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    _assert_close(products.linear(x, weight, bias), exact)


def test_row_does_not_depend_on_the_number_or_the_content_of_others(random):
    x, weight, bias = random(max(_ROWS), 70), random(40, 70), random(40)
    whole = products.linear(x, weight, bias)
    for count in _ROWS:
        assert torch.equal(products.linear(x[-count:], weight, bias), whole[-count:])
    x[1:] = 100.0
    assert torch.equal(products.linear(x, weight, bias)[0], whole[0])


def _experts(random, num_rows, num_experts=5, top_k=2):
    x, gate_up, down = random(num_rows, 24), random(num_experts, 2 * 20, 24) / 8, random(num_experts, 24, 20) / 8
    weights, ids = moe.moe_route(random(num_rows, num_experts), top_k, True, "softmax")
    return x, weights, ids, gate_up, down


@pytest.mark.parametrize("num_rows", [1, 3, 200])
def test_experts_give_what_each_of_them_gives(random, num_rows):
    x, weights, ids, gate_up, down = _experts(random, num_rows)
    exact = moe.moe_experts(x.double(), weights, ids, gate_up.double(), down.double())
    ours = products.moe_experts(x, weights, ids, gate_up, down)
    torch.testing.assert_close(ours.double(), exact, rtol=4 * _TOLERANCE[x.dtype], atol=4 * _TOLERANCE[x.dtype])


def test_row_of_experts_does_not_depend_on_others(random):
    x, weights, ids, gate_up, down = _experts(random, 200)
    whole = products.moe_experts(x, weights, ids, gate_up, down)
    for part in (slice(0, 1), slice(199, 200), slice(3, 70)):
        assert torch.equal(products.moe_experts(x[part], weights[part], ids[part], gate_up, down), whole[part])


def test_all_rows_may_choose_one_expert(random):
    x, weights, _, gate_up, down = _experts(random, 150)
    ids = torch.tensor([[4, 2]]).expand(150, 2).contiguous()
    exact = moe.moe_experts(x.double(), weights, ids, gate_up.double(), down.double())
    ours = products.moe_experts(x, weights, ids, gate_up, down)
    torch.testing.assert_close(ours.double(), exact, rtol=4 * _TOLERANCE[x.dtype], atol=4 * _TOLERANCE[x.dtype])


def test_tiles_ask_nothing_of_the_host():
    with capturable():
        products._Tiles.of(torch.randint(0, 7, (150,)), 7)


_COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from kernels.accelerator.triton_products import _products

for capability, type, grouped in ((80, "fp32", False), (90, "fp32", True), (80, "bf16", True), (90, "bf16", False)):
    sizes = {"block_rows": 64, "block_columns": 32, "block_depth": 32 if type == "fp32" else 64}
    constants = {"grouped": grouped, "has_bias": True, "widen": False, **sizes}
    signature = dict.fromkeys(("x", "weights", "bias", "out"), f"*{type}")
    signature |= dict.fromkeys(("tile_groups", "tile_starts", "tile_ends"), "*i64" if grouped else f"*{type}")
    signature |= dict.fromkeys(("num_rows", "num_columns", "depth", "num_tiles"), "i32") | dict.fromkeys(constants, "constexpr")
    compiled = compile(ASTSource(_products, signature, constants), target=GPUTarget("cuda", capability, 32))
    assert "tf32" not in compiled.asm["ptx"] and compiled.asm["cubin"]
    assert ("mma" in compiled.asm["ptx"]) == (type == "bf16"), compiled.asm["ptx"]
"""


@pytest.mark.slow
def test_kernel_compiles_for_devices_that_are_not_here_without_shorter_mantissas(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COMPILE], env=environment, cwd=Path(__file__).parents[2], check=True, timeout=110
    )
