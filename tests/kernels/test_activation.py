"""swiglu."""

import pytest
import torch


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
