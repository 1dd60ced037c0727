"""Which calls go to the kernels, and which to the torch implementations."""

import pytest
import torch

from kernels.testing.isolation import run_isolated

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("operator, shapes, dtype, takes", [
    ("rms_norm", [(2, 64), (64,)], "bfloat16", True),
    ("rms_norm", [(2, 64), (64,)], "float32", False),
    ("rms_norm", [(2, 20), (20,)], "bfloat16", False),
    ("rms_norm", [(0, 64), (64,)], "bfloat16", False),
    ("linear", [(2, 64), (96, 64), None], "bfloat16", True),
    ("linear", [(2, 64), (100, 64), None], "bfloat16", False),
    ("swiglu", [(2, 96)], "bfloat16", True),
    ("swiglu", [(2, 48)], "bfloat16", False),
    ("argmax", [(2, 96)], "float32", True),
    ("argmax", [(2, 96)], "bfloat16", False),
    ("moe_route", [(2, 128)], "bfloat16", True),
    ("moe_route", [(2, 128)], "float32", False),
])  # fmt: skip
def test_a_call_goes_to_the_kernel_if_it_can_take_it(operator, shapes, dtype, takes):
    assert run_isolated("harness.kernels.registered_kernels:takes", operator, shapes, dtype) is takes


@pytest.mark.kernels_fast
def test_every_operator_that_a_model_calls_is_registered_for_npus():
    assert set(run_isolated("harness.kernels.registered_kernels:registered", "PrivateUse1")) >= {
        "rms_norm", "add_rms_norm", "swiglu", "linear", "embedding", "argmax", "top_k", "qk_rope_kv_write", "paged_attention", "moe_route",
        "moe_experts", "lay_out_head_norms",
    }  # fmt: skip


@pytest.mark.kernels_fast
def test_the_dispatcher_runs_the_kernels_and_the_torch_implementations():
    launched, results, expected = run_isolated("harness.kernels.registered_kernels:norms_of_both_kinds")
    assert launched == ["rms_norm_kernel"]
    torch.testing.assert_close(torch.tensor(results), torch.tensor(expected), rtol=2**-7, atol=0)


@pytest.mark.kernels_fast
def test_the_sampler_runs_on_the_kernels_and_draws_the_same():
    launched, drawn, expected = run_isolated("harness.kernels.registered_kernels:drawn_tokens")
    assert launched == ["argmax_kernel", "top_k_kernel"]
    assert drawn == expected
