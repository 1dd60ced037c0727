"""Grouped experts against float64, and against the torch implementation bit for bit."""

import pytest
import torch
import torch.nn.functional as F

from kernels.reference import moe
from kernels.testing.depth import Depth
from kernels.testing.operators import interpret

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(600)]


def arguments(rows, experts, top_k, hidden, inner, used=None):
    """Experts from `used` on get no row."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, hidden, generator=generator).bfloat16()
    ids = torch.stack([torch.randperm(used or experts, generator=generator)[:top_k] for _ in range(rows)])
    weights = torch.rand(rows, top_k, generator=generator)
    gate_up = torch.randn(experts, 2 * inner, hidden, generator=generator) * hidden**-0.5
    down = torch.randn(experts, hidden, inner, generator=generator) * inner**-0.5
    return [x, weights / weights.sum(-1, keepdim=True), ids, gate_up.bfloat16(), down.bfloat16()]


def check(args, depth=Depth.TENSOR_GRAPH):
    x, weights, ids, gate_up, down = args
    gate, up = torch.einsum("th,eih->tei", x.double(), gate_up.double()).chunk(2, dim=-1)
    every = torch.einsum("tei,ehi->teh", F.silu(gate) * up, down.double())
    expected = (every.gather(1, ids[:, :, None].expand(-1, -1, x.shape[1])) * weights[:, :, None].double()).sum(1)
    (found,), _ = interpret("moe_experts:moe_experts", *args, depth=depth)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-2)
    return found


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((1, 8, 2, 64, 64), marks=pytest.mark.kernels_fast),
        (2, 4, 2, 64, 32),
        (15, 4, 1, 64, 32, 1),
        (16, 4, 1, 64, 32, 1),
        (17, 4, 1, 64, 32, 1),
        pytest.param((20, 8, 2, 64, 64, 3), marks=pytest.mark.kernels_fast),
        (40, 16, 4, 128, 96),
    ],
)
def test_rows_are_the_weighted_sums_of_their_experts(shape):
    check(arguments(*shape))


def test_a_row_equals_the_torch_form_which_adds_in_top_k_order():
    args = arguments(5, 8, 4, 64, 32)
    assert torch.equal(check(args), moe.moe_experts(*args))


def test_rows_are_batch_invariant():
    x, weights, ids, gate_up, down = arguments(20, 8, 2, 64, 64)
    whole = check([x, weights, ids, gate_up, down])
    assert torch.equal(check([x[-3:], weights[-3:], ids[-3:], gate_up, down]), whole[-3:])


def test_every_pass_of_the_compiler_keeps_it():
    check(arguments(3, 4, 2, 32, 32), Depth.ALL_PASSES)
