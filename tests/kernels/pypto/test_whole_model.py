"""The executor of a whole tiny model, operator by operator through the interpreted kernels."""

import pytest
import torch

from kernels.testing.isolation import run_isolated

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(900)]

_DENSE = [
    "add_rms_norm_kernel",
    "argmax_kernel",
    "decode_attend_kernel",
    "decode_merge_kernel",
    "embedding_kernel",
    "linear_kernel",
    "prefill_attend_kernel",
    "prefill_merge_kernel",
    "qk_rope_kv_write_kernel",
    "rms_norm_kernel",
    "swiglu_kernel",
]


def assert_same(directory, lengths, num_generated, kernels):
    """Same tokens; logits within 1/64 of the range of the torch implementations' logits: both round every operator's result to bf16."""
    tokens, logits, launched = _draw(directory, lengths, num_generated, True)
    expected_tokens, expected_logits, _ = _draw(directory, lengths, num_generated, False)
    assert launched == kernels
    for ours, theirs in zip(map(torch.tensor, logits), map(torch.tensor, expected_logits), strict=True):
        error = (ours - theirs).abs().max() / (theirs.max() - theirs.min())
        print(f"largest error {error:.2e} of the range of the logits")
        assert error <= 1 / 64
    assert tokens == expected_tokens


def _draw(directory, lengths, num_generated, interpreted):
    return run_isolated("harness.kernels.interpreted_model:draw", str(directory), lengths, num_generated, interpreted)


@pytest.mark.kernels_fast
def test_dense_model_draws_the_tokens_of_the_torch_implementations(tiny_checkpoint):
    assert_same(tiny_checkpoint("qwen3", "bfloat16", head_dim=32), [515, 5], 4, _DENSE)  # the first prompt has two key tiles


def test_routed_model_draws_the_tokens_of_the_torch_implementations(tiny_checkpoint):
    of_experts = {"grouped_mlp_kernel", "moe_route_kernel", "weighted_sum_kernel"}
    kernels = sorted({*_DENSE, *of_experts} - {"swiglu_kernel", "prefill_merge_kernel"})  # each prompt is one key tile
    assert_same(tiny_checkpoint("qwen3_moe", "bfloat16", head_dim=32, num_experts=16), [9, 2], 3, kernels)
