"""The PyPTO kernel of swiglu, against float64 with the same roundings."""

import pytest
import torch
import torch.nn.functional as F

from kernels.testing.depth import Depth

pytestmark = pytest.mark.kernels

BF16_STEP = 2.0**-7


def gated(gate_up):
    gate, up = gate_up.double().chunk(2, -1)
    return F.silu(gate).bfloat16().double() * up


def assert_close(found, expected):
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=BF16_STEP, atol=1e-36)  # exp(88) is the greatest: below it silu is 0


# Tasks are of 8 rows and 2048 columns, turns of the loop of 128 rows at most.
@pytest.mark.kernels_fast
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 127, 128, 129])
def test_any_number_of_rows(run, random, rows):
    gate_up = random(rows, 2 * 96)
    assert_close(run("swiglu:swiglu", gate_up), gated(gate_up))


@pytest.mark.parametrize("width", [16, 2032, 2048, 2064, 3072, 17408])
def test_any_width(run, random, width):
    gate_up = random(9, 2 * width)
    assert_close(run("swiglu:swiglu", gate_up), gated(gate_up))


@pytest.mark.kernels_fast
def test_gates_far_from_zero(run):
    gates = torch.tensor([-1e30, -200.0, -90.0, -20.0, 0.0, 20.0, 90.0, 1e30]).repeat(4)
    found = run("swiglu:swiglu", torch.cat((gates, torch.full((32,), 2.0))).bfloat16().unsqueeze(0))
    assert_close(found[:, 3:], gated(torch.cat((gates, torch.full((32,), 2.0))).bfloat16().unsqueeze(0))[:, 3:])
    assert (found[:, :3].abs() < 1e-30).all()


def test_after_every_pass(run, random):
    gate_up = random(11, 2 * 64)
    assert_close(run("swiglu:swiglu", gate_up, depth=Depth.ALL_PASSES), gated(gate_up))
