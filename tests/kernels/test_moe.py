"""moe_route and moe_experts."""

import pytest
import torch
import torch.nn.functional as F

from kernels import ops
from kernels.linear import PackedExperts, PackedLinear


@pytest.mark.parametrize(("renormalize", "expected"), [(False, [0.6439, 0.2369]), (True, [0.7311, 0.2689])])
def test_mod_10_route_weights_are_renormalised_only_when_asked(operators, renormalize, expected):
    weights, experts = operators.moe_route(torch.tensor([[2.0, 1.0, 0.0, -1.0]]), 2, renormalize, "softmax")
    assert experts.tolist() == [[0, 1]]
    torch.testing.assert_close(weights, torch.tensor([expected]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (60, 6), (64, 8), (128, 8)])
def test_route_equals_the_formula_in_float64(operators, random, scoring, experts, top_k):
    logits = random(9, experts)
    scores = logits.double().softmax(-1) if scoring == "softmax" else logits.double().sigmoid()
    weights, ids = operators.moe_route(logits, top_k, True, scoring)
    chosen = scores.gather(1, ids)
    torch.testing.assert_close(chosen, scores.topk(top_k).values)
    torch.testing.assert_close(weights.double(), chosen / chosen.sum(-1, keepdim=True), rtol=1e-6, atol=1e-6)


def test_route_gives_ties_to_the_lowest_id(operators):
    assert operators.moe_route(torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0], [0.0] * 5]), 4, False, "softmax")[1].tolist() == [
        [1, 2, 4, 0],
        [0, 1, 2, 3],
    ]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_route_is_batch_invariant(operators, random, scoring):
    logits = random(100, 60)
    weights, ids = operators.moe_route(logits, 6, True, scoring)
    for rows in (1, 2, 3, 8, 33, 64):
        some_weights, some_ids = operators.moe_route(logits[-rows:], 6, True, scoring)
        assert torch.equal(some_weights, weights[-rows:]) and torch.equal(some_ids, ids[-rows:])


@pytest.fixture
def mlps(random):
    return random(8, 2 * 48, 32) * 32**-0.5, random(8, 32, 48) * 48**-0.5


def test_experts_equal_the_weighted_sum_of_their_mlps(method, dtype, random, mlps):
    gate_up, down = mlps
    x, (weights, ids) = random(11, 32), ops.moe_route(random(11, 8), 3, True, "softmax")
    gate, up = torch.einsum("th,eih->tei", x.double(), gate_up.double()).chunk(2, dim=-1)
    every = torch.einsum("tei,ehi->teh", F.silu(gate) * up, down.double())
    expected = (every.gather(1, ids[:, :, None].expand(-1, -1, 32)) * weights[:, :, None]).sum(1)
    ours = PackedExperts(gate_up, down)(x, weights, ids)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=3e-2 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("threads", [1, 3])
def test_experts_are_batch_invariant(own_method, random, mlps, threads):
    torch.set_num_threads(threads)
    experts = PackedExperts(*mlps)
    x, (weights, ids) = random(257, 32), ops.moe_route(random(257, 8), 3, True, "softmax")
    whole = experts(x, weights, ids)
    for rows in [*range(1, 34), 64, 100]:
        assert torch.equal(experts(x[-rows:], weights[-rows:], ids[-rows:]), whole[-rows:])


@pytest.mark.parametrize(("hidden", "inner"), [(32, 48), (40, 37)])
def test_an_expert_has_the_bits_of_its_linears(own_method, random, hidden, inner):
    gate_up, down, x = random(8, 2 * inner, hidden), random(8, hidden, inner), random(5, hidden)
    one, ids = torch.ones(5, 1), torch.tensor([[3], [0], [3], [7], [3]])
    ours = PackedExperts(gate_up, down)(x, one, ids)
    for row, expert in enumerate(ids.flatten().tolist()):
        inside = PackedLinear(gate_up[expert], None, gated=True)(x[row : row + 1])
        assert torch.equal(ours[row], PackedLinear(down[expert], None)(inside)[0])


def test_experts_in_parts_are_the_experts_as_a_whole(method, random, mlps):
    gate_up, down = mlps
    gates_and_ups = [part for expert in gate_up for part in expert.chunk(2)]
    x, (weights, ids) = random(5, 32), ops.moe_route(random(5, 8), 3, True, "softmax")
    ours = PackedExperts(gates_and_ups, list(down), len(down))(x, weights, ids)
    assert torch.equal(ours, PackedExperts(gate_up, down)(x, weights, ids))


def test_experts_are_summed_in_the_order_of_the_rows_top_k(own_method, random, mlps):
    experts = PackedExperts(*mlps)
    x, weights, ids = random(2, 32), torch.tensor([[0.5, 0.3, 0.2]] * 2), torch.tensor([[5, 0, 3], [3, 0, 5]])
    parts = [experts(x, torch.ones(2, 1), torch.full((2, 1), expert))[0].float() for expert in ids[0].tolist()]
    ours = experts(x, weights, ids)
    torch.testing.assert_close(ours[0], (parts[0] * 0.5 + parts[1] * 0.3 + parts[2] * 0.2).to(x.dtype))


def test_experts_without_rows_give_no_rows(own_method, random, mlps):
    assert PackedExperts(*mlps)(random(0, 32), torch.empty(0, 3), torch.empty(0, 3, dtype=torch.int64)).shape == (0, 32)


def test_an_expert_that_does_not_exist_is_refused(own_method, random, mlps):
    with pytest.raises(IndexError, match="expert 8 of 8"):
        PackedExperts(*mlps)(random(1, 32), torch.ones(1, 1), torch.tensor([[8]]))
