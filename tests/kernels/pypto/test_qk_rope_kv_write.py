"""The fused norm, rotation and cache write against its parts one by one: bit for bit, but where the norms' sums round otherwise."""

import pytest
import torch

from kernels.reference import rows
from kernels.testing.depth import Depth
from kernels.testing.operators import interpret

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(600)]

POSITIONS, PAGES, PAGE_TOKENS = 100, 10, 16


def arguments(rows, heads=(4, 2), head_dim=32, normed=True):
    generator = torch.Generator().manual_seed(rows)

    def random(*shape):
        return torch.randn(*shape, generator=generator).bfloat16()

    num_heads, num_kv_heads = heads
    angles = torch.rand(POSITIONS, head_dim // 2, generator=generator) * 6
    norms = (random(head_dim), random(head_dim)) if normed else (None, None)
    positions = torch.randint(POSITIONS, (rows,), generator=generator)
    caches = random(PAGES, PAGE_TOKENS, num_kv_heads, head_dim), random(PAGES, PAGE_TOKENS, num_kv_heads, head_dim)
    slots = torch.randperm(PAGES * PAGE_TOKENS, generator=generator)[:rows]
    return [random(rows, num_heads + 2 * num_kv_heads, head_dim), *norms, 1e-6, positions, angles.cos(), angles.sin(), *caches, slots]


def one_by_one(args):
    qkv, q_norm, k_norm, eps, positions, cos, sin, k_cache, v_cache, slots = args
    kv_heads = k_cache.shape[2]
    query, key, value = qkv.split([qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if q_norm is not None:
        query, key = rows.rms_norm(query, q_norm, eps), rows.rms_norm(key, k_norm, eps)
    query, key = rows.rotary(query, key, positions, cos, sin)
    k_cache, v_cache = k_cache.clone(), v_cache.clone()
    rows.write_kv(key, value, k_cache, v_cache, slots)
    return query, k_cache, v_cache


def laid_out(args):
    """With the weights of the norms as loading leaves them."""
    qkv, q_norm, k_norm, *others = args
    kv_heads = others[4].shape[2]
    if q_norm is None:
        return args
    norms, _ = interpret("qk_rope_kv_write:lay_out_head_norms", q_norm, k_norm, qkv.shape[1] - 2 * kv_heads, kv_heads)
    return [qkv, *norms, *others]


def assert_same(found, expected, normed):
    """Equal; after a norm, one in a hundred may be a bf16 step of the norm (2^-7) off, which a rotation brings to two numbers."""
    assert found.isfinite().all()
    if not normed:
        assert torch.equal(found, expected)
    assert (found != expected).double().mean() <= 0.01
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=2**-6 * expected.abs().max().item())


def check(args, depth=Depth.TENSOR_GRAPH):
    query, k_cache, v_cache = one_by_one(args)
    (found,), left = interpret("qk_rope_kv_write:qk_rope_kv_write", *laid_out(args), depth=depth)
    written = torch.zeros(PAGES * PAGE_TOKENS, dtype=torch.bool)
    written[args[9]] = True
    assert torch.equal(left[8], v_cache)
    assert torch.equal(left[7].flatten(0, 1)[~written], k_cache.flatten(0, 1)[~written])
    assert_same(found, query, args[1] is not None)
    assert_same(left[7].flatten(0, 1)[written], k_cache.flatten(0, 1)[written], args[1] is not None)


FAST_ROWS = [pytest.param(rows, marks=pytest.mark.kernels_fast) for rows in (1, 17)]


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("rows", [*FAST_ROWS, 2, 8, 9, 64, 65, 130])
def test_queries_and_caches_are_those_of_norm_rotation_and_write(rows, normed):
    check(arguments(rows, normed=normed))


@pytest.mark.parametrize("heads", [(16, 8), (40, 8), (4, 4)])
def test_heads_of_real_models(heads):
    check(arguments(5, heads, head_dim=128))


def test_padding_rows_may_share_a_slot():
    args = arguments(8)
    args[9][3:] = 7  # a slot of the scratch page
    query, k_cache, v_cache = one_by_one(args)
    (found,), left = interpret("qk_rope_kv_write:qk_rope_kv_write", *laid_out(args))
    live = torch.arange(PAGES * PAGE_TOKENS) != 7
    assert torch.equal(found, query)
    assert torch.equal(left[7].flatten(0, 1)[live], k_cache.flatten(0, 1)[live])
    assert torch.equal(left[8].flatten(0, 1)[live], v_cache.flatten(0, 1)[live])


def test_every_pass_of_the_compiler_keeps_it():
    check(arguments(3, (2, 1)), Depth.ALL_PASSES)
