"""What each layer of a captured decode step launches: a launch costs more than most kernels of a small model; and what steers it."""

from collections import Counter

import pytest

from kernels.testing.isolation import run_isolated

pytestmark = [pytest.mark.kernels, pytest.mark.kernels_fast]

_ATTENTION = {"qk_rope_kv_write_kernel": 1, "decode_attend_kernel": 1, "decode_merge_kernel": 1, "add_rms_norm_kernel": 2}
_DENSE = _ATTENTION | {"linear_kernel": 4, "swiglu_kernel": 1}
_EXPERTS = _ATTENTION | {"linear_kernel": 3, "moe_route_kernel": 1, "grouped_mlp_kernel": 1, "weighted_sum_kernel": 1}


@pytest.mark.parametrize(
    ("family", "config", "launches", "num_torch_calls", "computed"),
    [
        ("qwen3", {}, _DENSE, 1, set()),
        ("qwen3_moe", {"num_experts": 16}, _EXPERTS, 6, {"moe_route_kernel", "grouped_mlp_kernel"}),
    ],
)
def test_layer_of_a_decode_step(tiny_checkpoint, family, config, launches, num_torch_calls, computed):
    """Its kernels take integers from the static batch, written before a replay, but for the experts'."""
    fields = {"head_dim": 32, **config}
    shorter, longer = (_count(tiny_checkpoint(family, "bfloat16", num_hidden_layers=layers, **fields)) for layers in (1, 2))
    assert longer[0] - shorter[0] == launches
    torch_calls = longer[1] - shorter[1]
    assert torch_calls.total() == num_torch_calls, torch_calls
    assert longer[2] == computed


def _count(directory):
    launches, torch_calls, computed = run_isolated("harness.kernels.counted_steps:count", str(directory))
    return Counter(launches), Counter(torch_calls), computed
