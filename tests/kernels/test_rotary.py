"""rotary."""

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb


def tables(length: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(length).outer(10000.0 ** -(torch.arange(0, head_dim, 2) / head_dim))
    return angles.cos(), angles.sin()


@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((4, 2), 16), ((2, 2), 48), ((16, 8), 128)])
def test_rotary_equals_the_oracle(operators, dtype, random, heads, head_dim):
    q, k = random(17, heads[0], head_dim), random(17, heads[1], head_dim)
    cos, sin = tables(512, head_dim)
    positions = torch.arange(17) * 29
    full_cos, full_sin = (torch.cat((table, table), -1)[positions][None].to(dtype) for table in (cos, sin))
    oracle = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], full_cos, full_sin)
    tolerance = {} if dtype == torch.float32 else {"rtol": 0, "atol": 0}
    for ours, theirs in zip(operators.rotary(q, k, positions, cos, sin), oracle, strict=True):
        torch.testing.assert_close(ours, theirs[0].transpose(0, 1), **tolerance)


def test_rotary_takes_views_of_a_packed_projection(operators, random):
    packed = random(5, 8 * 32)
    q, k = packed[:, :128].view(5, 4, 32), packed[:, 128:192].view(5, 2, 32)
    arguments = (torch.arange(5), *tables(8, 32))
    for view, copy in zip(operators.rotary(q, k, *arguments), operators.rotary(q.contiguous(), k.contiguous(), *arguments), strict=True):
        assert torch.equal(view, copy)


def test_rotary_is_batch_invariant(operators, random):
    q, k, (cos, sin), positions = random(100, 4, 32), random(100, 2, 32), tables(100, 32), torch.arange(100)
    whole = operators.rotary(q, k, positions, cos, sin)
    for rows in (1, 2, 3, 33, 64):
        assert all(
            torch.equal(a, b[-rows:])
            for a, b in zip(operators.rotary(q[-rows:], k[-rows:], positions[-rows:], cos, sin), whole, strict=True)
        )


@pytest.mark.parametrize("position", [-9, 8])
def test_rotary_refuses_a_position_beyond_its_tables(operators, random, position):
    with pytest.raises(IndexError):
        operators.rotary(random(1, 2, 16), random(1, 1, 16), torch.tensor([position]), *tables(8, 16))
