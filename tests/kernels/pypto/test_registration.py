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
    ("moe_route", [(2, 60)], "bfloat16", False),
])  # fmt: skip
def test_a_call_goes_to_the_kernel_if_it_can_take_it(operator, shapes, dtype, takes):
    assert run_isolated("harness.kernels.registered_kernels:takes", operator, shapes, dtype) is takes


@pytest.mark.parametrize("page_tokens, window, takes", [(16, 0, True), (16, 16, True), (16, 15, False), (24, 0, False), (256, 0, False)])
def test_attention_goes_to_the_kernel_where_pages_fit(page_tokens, window, takes):
    assert run_isolated("harness.kernels.registered_kernels:takes_attention", page_tokens, window) is takes


@pytest.mark.parametrize("shape, transposed, takes", [
    ((64, 32), False, True),
    ((64, 32), True, False),
    ((1 << 20, 2047), False, True),
    ((1 << 20, 2048), False, False),
])  # fmt: skip
def test_no_tensor_that_pypto_cannot_address_goes_to_a_kernel(shape, transposed, takes):
    assert run_isolated("harness.kernels.registered_kernels:goes_to_the_kernel", shape, transposed) is takes


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
