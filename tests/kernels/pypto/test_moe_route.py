"""Routing against the formula in float64."""

import pytest
import torch

from kernels.testing.depth import Depth
from kernels.testing.operators import interpret

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(600)]


def fast(*values):
    return pytest.param(*values, marks=pytest.mark.kernels_fast)


def check(logits, top_k, renormalize, scoring, depth=Depth.TENSOR_GRAPH):
    assert torch.equal(logits.bfloat16(), logits)
    scores = logits.double().softmax(-1) if scoring == "softmax" else logits.double().sigmoid()
    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    expected = ordered[:, :top_k]
    (weights, found), _ = interpret("moe_route:moe_route", logits.bfloat16(), top_k, renormalize, scoring, depth=depth)
    assert torch.equal(found, ids[:, :top_k])
    torch.testing.assert_close(
        weights.double(), expected / expected.sum(-1, keepdim=True) if renormalize else expected, rtol=1e-5, atol=1e-6
    )


def distinct(rows, experts):
    """Logits in steps of 1/8, from -8 to 8 at most: scores differ by more than rounding in float32."""
    generator = torch.Generator().manual_seed(rows)
    return torch.stack([torch.randperm(experts, generator=generator) for _ in range(rows)]).float() / 8 - experts / 16


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("rows", "experts", "top_k"), [(1, 16, 2), fast(2, 48, 6), (7, 64, 8), (8, 128, 8), fast(9, 128, 8), (33, 16, 1)])
def test_weights_and_experts_are_those_of_the_formula(rows, experts, top_k, scoring):
    check(distinct(rows, experts), top_k, True, scoring)


def test_weights_stay_as_they_are_unless_asked():
    check(distinct(3, 16), 4, False, "softmax")


@pytest.mark.kernels_fast
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_ties_go_to_the_lowest_expert(scoring):
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0] + [0.0] * 11, [0.0] * 16, [-3.0] * 15 + [2.0]])
    check(logits, 4, True, scoring)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_extreme_logits_give_finite_weights(scoring):
    (weights, ids), _ = interpret("moe_route:moe_route", torch.tensor([[-1e4, 1e4] + [0.0] * 14]).bfloat16(), 2, True, scoring)
    assert ids[0].tolist() == [1, 2 if scoring == "sigmoid" else 0]
    assert weights.isfinite().all()


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_every_pass_of_the_compiler_keeps_it(scoring):
    check(distinct(9, 16), 3, True, scoring, Depth.ALL_PASSES)
