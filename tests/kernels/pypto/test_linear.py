"""The PyPTO kernel of linear, against float64."""

import pytest
import torch

from kernels.testing.depth import Depth

pytestmark = pytest.mark.kernels


def assert_product(found, x, weight, bias=None):
    """Rounded once to bf16 (half a step of 2^-7), after sums in fp32 whose error grows with the size of what is added."""
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    allowed = 2**-8 * expected.abs() + 1e-6 * (x.double().abs() @ weight.double().abs().T)
    assert found.dtype == torch.bfloat16 and found.isfinite().all()
    worst = ((found.double() - expected).abs() - allowed).max()
    assert worst <= 0, f"{worst:.2e} beyond what rounding allows"


@pytest.mark.kernels_fast
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 257])
def test_any_number_of_rows(run, random, rows):
    x, weight = random(rows, 64), random(96, 64)
    assert_product(run("linear:linear", x, weight), x, weight)


# Tasks take 1/22 of the outputs, in sixteens, or 256 of them.
@pytest.mark.parametrize("out_features", [16, 100, 336, 352, 368, 1024, 5632, 5648])
def test_any_number_of_outputs(run, random, out_features):
    x, weight = random(3, 64), random(out_features, 64)
    assert_product(run("linear:linear", x, weight), x, weight)


@pytest.mark.parametrize("in_features", [16, 72, 128, 144, 576, 1024, 1040, 3072])
def test_any_number_of_inputs(run, random, in_features):
    x, weight = random(18, in_features), random(112, in_features)
    assert_product(run("linear:linear", x, weight), x, weight)


@pytest.mark.parametrize("shape", [(4096, 1024), (1024, 2048), (1024, 3072)], ids=str)
def test_projections_of_a_small_model(run, random, shape):
    x, weight = random(5, shape[1]), random(*shape)
    assert_product(run("linear:linear", x, weight), x, weight)


@pytest.mark.kernels_fast
@pytest.mark.parametrize("shape", [(1, 16, 64), (17, 100, 160), (129, 48, 64), (3, 5648, 32)], ids=str)
def test_bias_is_added_before_rounding(run, random, shape):
    rows, out_features, in_features = shape
    x, weight, bias = random(rows, in_features), random(out_features, in_features), random(out_features) * 20
    assert_product(run("linear:linear", x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("rows", [3, 17])
@pytest.mark.parametrize("biased", [False, True])
def test_after_every_pass(run, random, rows, biased):
    x, weight, bias = random(rows, 96), random(48, 96), random(48) if biased else None
    assert_product(run("linear:linear", x, weight, bias, depth=Depth.ALL_PASSES), x, weight, bias)


@pytest.mark.kernels_fast
@pytest.mark.parametrize("in_features", [64, 2048])
def test_rows_are_batch_invariant(run, random, in_features):
    x, weight = random(129, in_features), random(48, in_features)
    together = run("linear:linear", x, weight)
    for rows in (1, 16, 20, 64):
        assert torch.equal(run("linear:linear", x[:rows], weight), together[:rows])
