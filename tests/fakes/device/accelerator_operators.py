"""The CPU in the role of an accelerator: the torch implementations that one is given."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kernels import linear, ops
from kernels.accelerator import attention, rows

_OPERATORS = {
    "_rms_norm": rows.rms_norm,
    "_add_rms_norm": rows.add_rms_norm,
    "_paged_attention": attention.paged_attention,
    "_linear": rows.linear,
    "_moe_experts": rows.moe_experts,
}


@contextmanager
def accelerator_operators() -> Iterator[None]:
    """Within it, models load and run on the CPU as they would on an accelerator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "_is_on_host", lambda weight: False)
        for name, operator in _OPERATORS.items():
            patch.setattr(ops, name, operator)
        yield
