"""Operators that take rows one by one: norms, rotary embedding, cache writes, activation, look-ups."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from kernels import ops


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


def test_write_kv_puts_rows_at_their_slots_and_nowhere_else(operators, dtype, random):
    packed = random(3, 6 * 16)
    k, v = packed[:, 32:64].view(3, 2, 16), packed[:, 64:].view(3, 2, 16)
    k_cache, v_cache = torch.zeros(2, 4, 4, 2, 16, dtype=dtype)
    operators.write_kv(k, v, k_cache, v_cache, torch.tensor([15, 0, 6]))
    for cache, rows in ((k_cache, k), (v_cache, v)):
        assert torch.equal(cache.flatten(0, 1)[[15, 0, 6]], rows)
        assert cache.count_nonzero() == rows.count_nonzero()


@pytest.mark.parametrize("slot", [-17, 16])
def test_write_kv_refuses_a_slot_outside_the_cache(operators, dtype, random, slot):
    caches = torch.zeros(2, 4, 4, 2, 16, dtype=dtype)
    with pytest.raises((IndexError, RuntimeError)):
        operators.write_kv(random(1, 2, 16), random(1, 2, 16), *caches, torch.tensor([slot]))


@pytest.mark.parametrize("width", [7, 16, 100, 1536])
def test_swiglu_is_silu_of_the_gate_times_up(operators, dtype, random, width):
    gate_up = random(5, 2 * width) * 4
    gate, up = gate_up.double().chunk(2, dim=-1)
    torch.testing.assert_close(
        operators.swiglu(gate_up).double(), gate * gate.sigmoid() * up, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5
    )


def test_swiglu_of_extreme_gates_is_finite(operators, dtype):
    gate_up = torch.tensor([[-1e30, -200.0, -90.0, 0.0, 90.0, 1e30] + [1.0] * 6], dtype=dtype)
    assert torch.equal(operators.swiglu(gate_up)[0, [0, 3, 5]].float(), gate_up[0, [0, 3, 5]].float().clamp(min=0))
    assert operators.swiglu(gate_up).isfinite().all()


def test_swiglu_keeps_nan(operators, dtype):
    assert operators.swiglu(torch.tensor([[torch.nan, 1.0]], dtype=dtype)).isnan().all()


def test_swiglu_is_batch_invariant(operators, random):
    gate_up = random(257, 200)
    whole = operators.swiglu(gate_up)
    for rows in (1, 2, 3, 33, 64, 100):
        assert torch.equal(operators.swiglu(gate_up[-rows:]), whole[-rows:])


def test_embedding_picks_rows(random):
    table = random(10, 4)
    assert torch.equal(ops.embedding(torch.tensor([3, 0, 3]), table), table[[3, 0, 3]])


@pytest.mark.parametrize("size", [5, 64, 1000, 49152])
def test_argmax_takes_the_lowest_id_of_equals(size):
    logits = torch.zeros(3, size)
    logits[1, [size // 2, size - 1]] = 1.0
    logits[2, size - 1] = 1.0
    assert ops.argmax(logits).tolist() == [0, size // 2, size - 1]


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_argmax_is_batch_invariant(rows):
    logits = torch.randint(0, 50, (64, 3001), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(ops.argmax(logits[-rows:]), ops.argmax(logits)[-rows:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1, 15, 16, 63, 64, 65, 1000, 49157])
def test_greatest_value_and_its_lowest_id_are_those_of_torch(dtype, size):
    logits = (torch.randn(9, size + 3, generator=torch.Generator().manual_seed(size)) * 4).round().to(dtype)[:, :size]
    logits[1] = -torch.inf
    logits[2, : size // 2] = -torch.inf
    logits[3, size // 2 :] = torch.inf
    values, ids = ops.greatest(logits)
    assert torch.equal(values, logits.amax(-1).float())
    assert torch.equal(ids, logits.float().argmax(-1))


@pytest.mark.parametrize("size", [1, 17, 64, 1000])
def test_greatest_value_of_a_row_with_nan_is_nan(size):
    for place in {0, size // 2, size - 1}:
        logits = torch.randn(3, size).abs()
        logits[1, place] = torch.nan
        values, ids = ops.greatest(logits)
        assert values.isnan().tolist() == [False, True, False] and bool((ids < size).all())
