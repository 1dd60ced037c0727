"""The PyPTO kernels of rms_norm and add_rms_norm, against float64 with the same roundings."""

import pytest
import torch

from kernels.testing.depth import Depth

pytestmark = pytest.mark.kernels

EPS = 1e-6
BF16_STEP = 2.0**-7


def normed(x, weight):
    wide = x.double()
    return (wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt()).bfloat16().double() * weight.double()


def assert_close(found, expected):
    assert found.dtype == torch.bfloat16 and found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, rtol=BF16_STEP, atol=0)


# Turns of the loop are of 128 rows at most, tasks of 16384 elements.
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 127, 128, 129, 300])
def test_rms_norm_of_any_number_of_rows(run, random, rows):
    x, weight = random(rows, 1024), random(1024)
    assert_close(run("norm:rms_norm", x, weight, EPS), normed(x, weight))


@pytest.mark.parametrize("width", [16, 64, 128, 576, 5120])
def test_rms_norm_of_any_width(run, random, width):
    x, weight = random(9, width), random(width)
    assert_close(run("norm:rms_norm", x, weight, EPS), normed(x, weight))


@pytest.mark.kernels_fast
def test_rms_norm_of_heads(run, random):
    x, weight = random(5, 3, 64), random(64)
    assert_close(run("norm:rms_norm", x, weight, EPS), normed(x, weight))


@pytest.mark.kernels_fast
def test_rms_norm_of_zeros_and_of_great_numbers(run, random):
    x, weight = torch.cat((random(1, 64) * 0, random(1, 64) * 1e18, random(1, 64) * 1e-18)), random(64)
    assert_close(run("norm:rms_norm", x, weight, EPS), normed(x, weight))


def test_norm_of_nan_is_nan_in_its_row_only(run, random):
    x, weight = random(3, 64), random(64)
    x[1, 7] = torch.nan
    found = run("norm:rms_norm", x, weight, EPS)
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 127, 129])
@pytest.mark.parametrize("width", [64, 1024])
def test_add_rms_norm_is_the_sum_and_its_norm(run, random, rows, width):
    x, residual, weight = random(rows, width), random(rows, width), random(width)
    found, total = run("norm:add_rms_norm", x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    assert_close(found, normed(total, weight))


@pytest.mark.kernels_fast
def test_add_rms_norm_of_wide_rows(run, random):
    x, residual, weight = random(3, 5120), random(3, 5120), random(5120)
    found, total = run("norm:add_rms_norm", x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    assert_close(found, normed(total, weight))


@pytest.mark.parametrize("rows", [1, 130])
def test_rms_norm_after_every_pass(run, random, rows):
    x, weight = random(rows, 64), random(64)
    assert_close(run("norm:rms_norm", x, weight, EPS, depth=Depth.ALL_PASSES), normed(x, weight))


def test_add_rms_norm_after_every_pass(run, random):
    x, residual, weight = random(67, 64), random(67, 64), random(64)
    found, total = run("norm:add_rms_norm", x, residual, weight, EPS, depth=Depth.ALL_PASSES)
    assert torch.equal(total, x + residual)
    assert_close(found, normed(total, weight))


@pytest.mark.kernels_fast
def test_rows_are_batch_invariant(run, random):
    x, residual, weight = random(129, 64), random(129, 64), random(64)
    together, alone = (run("norm:add_rms_norm", x[:n], residual[:n], weight, EPS) for n in (129, 1))
    assert torch.equal(together[0][:1], alone[0])
