"""Code for an NPU is made of every kernel at the shapes of published models. The interpreter says whether kernels compute."""

import pytest
from harness.kernels.generated_kernels import MODELS, OF_THE_SAMPLER, operators_of

from kernels.testing.isolation import IsolatedFailure, run_isolated

pytestmark = [pytest.mark.kernels, pytest.mark.timeout(900)]

#: Numbers that steer kernels of a decode step before these wait for what was launched before them.
STEERED_TOO_EARLY = {
    "decode_attend_kernel": {"positions"},
    "decode_merge_kernel": {"positions"},
    "grouped_mlp_kernel": {"starts"},
}

FAST = {("smollm2-135m", "decode_attention"), ("qwen3-0.6b", "decode_attention"), ("smollm2-360m", "qkv")}


CASES = [
    pytest.param(model, operator, marks=pytest.mark.kernels_fast if (model, operator) in FAST else ())
    for model in MODELS
    for operator in operators_of(model)
] + [pytest.param("qwen3-0.6b", operator, marks=pytest.mark.kernels_fast) for operator in OF_THE_SAMPLER]


@pytest.mark.parametrize("model, operator", CASES)
def test_code_is_generated_at_the_shapes_of_published_models(model, operator):
    launches = run_isolated("harness.kernels.generated_kernels:generate", model, operator)
    assert launches
    for name, steered_early, num_tasks in launches:
        assert num_tasks > 0
        assert operator.endswith("prefill_attention") or steered_early == STEERED_TOO_EARLY.get(name, set())


@pytest.mark.kernels_fast
def test_a_kernel_that_the_compiler_refuses_is_told():
    with pytest.raises(IsolatedFailure, match="NotGenerated: oversized_kernel: the compiler ended with status"):
        run_isolated("harness.kernels.generated_kernels:generate_what_does_not_fit")
