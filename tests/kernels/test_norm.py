"""rms_norm and add_rms_norm."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm


@pytest.mark.parametrize("shape", [(1, 576), (5, 64), (33, 100), (3, 7), (4, 3, 32)])
def test_rms_norm_equals_the_oracle(operators, dtype, random, shape):
    x, weight = random(*shape), random(shape[-1])
    oracle = LlamaRMSNorm(shape[-1], eps=1e-5).to(dtype)
    oracle.weight.data = weight
    torch.testing.assert_close(operators.rms_norm(x, weight, 1e-5), oracle(x).detach())


def test_rms_norm_takes_heads_inside_a_packed_projection(operators, random):
    packed, weight = random(5, 8 * 32), random(32)
    heads = packed[:, 64:192].view(5, 4, 32)
    assert torch.equal(operators.rms_norm(heads, weight, 1e-6), operators.rms_norm(heads.contiguous(), weight, 1e-6))


def test_rms_norm_of_zeros_is_zero(operators, random):
    assert torch.equal(operators.rms_norm(random(2, 64) * 0, random(64), 1e-5), random(2, 64) * 0)


def test_add_rms_norm_is_the_sum_and_its_norm(operators, dtype, random):
    x, residual, weight = random(5, 96), random(5, 96), random(96)
    normed, total = operators.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, operators.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("width", [64, 100, 576])
def test_norm_is_batch_invariant(operators, random, width):
    x, residual, weight = random(257, width), random(257, width), random(width)
    normed, together = operators.rms_norm(x, weight, 1e-5), operators.add_rms_norm(x, residual, weight, 1e-5)[0]
    for rows in (1, 2, 3, 7, 8, 33, 64, 100):
        assert torch.equal(operators.rms_norm(x[-rows:], weight, 1e-5), normed[-rows:])
        assert torch.equal(operators.add_rms_norm(x[:rows], residual[:rows], weight, 1e-5)[0], together[:rows])


@pytest.mark.parametrize("width", [1, 7, 64, 100])
@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf])
def test_row_with_anything_that_is_not_finite_is_found(operators, random, width, junk):
    x = random(9, width)
    x[1], x[2] = torch.finfo(x.dtype).max, torch.finfo(x.dtype).min
    x[4, 0] = x[5, width // 2] = x[8, -1] = junk
    assert operators.finite_rows(x).tolist() == [True] * 4 + [False] * 2 + [True] * 2 + [False]
    assert operators.finite_rows(x[:0]).shape == (0,)
