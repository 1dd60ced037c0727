"""The CPU in the role of an accelerator: the torch forms that one is given."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kernels import linear, ops
from kernels.accelerator import attention, moe, norm
from kernels.accelerator import linear as accelerator_linear

_FORMS = {
    "_rms_norm": norm.rms_norm,
    "_add_rms_norm": norm.add_rms_norm,
    "_paged_attention": attention.paged_attention,
    "_linear": accelerator_linear.linear,
    "_moe_experts": moe.moe_experts,
}


@contextmanager
def accelerator_forms() -> Iterator[None]:
    """Within it, models load and run on the CPU as they would on an accelerator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "_is_on_host", lambda weight: False)
        for name, form in _FORMS.items():
            patch.setattr(ops, name, form)
        yield
