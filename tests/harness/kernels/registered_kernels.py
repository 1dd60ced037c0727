"""Looks at the registration of the PyPTO kernels in processes of their own: see tests/kernels/pypto/test_registration.py."""

from collections.abc import Sequence

import torch

from kernels import ops
from kernels.reference import rows


def takes(operator: str, shapes: Sequence[tuple[int, ...] | None], dtype: str) -> bool:
    """Whether the kernel takes a call with such tensors."""
    from kernels.pypto.registration import OPERATORS

    tensors = [None if shape is None else torch.zeros(*shape, dtype=getattr(torch, dtype)) for shape in shapes]
    return OPERATORS[operator].takes(*tensors, *([1e-6] if operator == "rms_norm" else []))


def takes_attention(page_tokens: int, window: int) -> bool:
    """Whether the kernel takes attention over pages of a size through a window."""
    from kernels.pypto.registration import OPERATORS

    q, cache = torch.zeros(1, 2, 32, dtype=torch.bfloat16), torch.zeros(1, page_tokens, 1, 32, dtype=torch.bfloat16)
    index = torch.zeros(1, dtype=torch.int32)
    return OPERATORS["paged_attention"].takes(q, cache, cache, index.view(1, 1), index, index, 1.0, window)


def goes_to_the_kernel(shape: tuple[int, ...], transposed: bool) -> bool:
    """Whether a call with a tensor of that shape, none of whose memory is there, may go to a kernel that takes anything."""
    from kernels.pypto.registration import Operator

    tensor = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    return Operator(lambda *_: True, lambda *_: False, lambda *_: True)(tensor.t() if transposed else tensor, None, 0)


def registered(dispatch_key: str) -> list[str]:
    """Operators with an implementation under the key."""
    from kernels.pypto.registration import OPERATORS, register

    library = register(dispatch_key)
    known = (*OPERATORS, "lay_out_head_norms")
    names = [name for name in known if torch._C._dispatch_has_kernel_for_dispatch_key(f"{ops.NAMESPACE}::{name}", dispatch_key)]
    library._destroy()
    return names


def norms_of_both_kinds() -> tuple[list[str], list[float], list[float]]:
    """Kernels launched for a norm in bf16 and one in fp32, their results, and those of the torch implementation."""
    from kernels.testing.npu_role import interpreted_kernels

    x, weight = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)), torch.ones(64)
    wide, narrow = (x, weight, 1e-6), (x.bfloat16(), weight.bfloat16(), 1e-6)
    with interpreted_kernels() as launched:
        results = [ops.rms_norm(*arguments).float().flatten() for arguments in (wide, narrow)]
    expected = [rows.rms_norm(*arguments).float().flatten() for arguments in (wide, narrow)]
    return launched, torch.cat(results).tolist(), torch.cat(expected).tolist()


def drawn_tokens() -> tuple[list[str], list[int], list[int]]:
    """Kernels launched to draw from some rows of logits, what they drew, and what the torch implementations draw."""
    from harness.sampling import draw

    from kernels.testing.npu_role import interpreted_kernels, npu_layout
    from worker.step import LaneSampling

    logits = torch.randn(6, 3000, generator=torch.Generator().manual_seed(0)).bfloat16().float() * 3
    kinds = ({}, {"top_k": 20}, {"top_k": 20, "top_p": 0.9}, {"top_k": 128, "min_p": 0.01}, {"top_k": 2}, {"top_p": 0.9})
    samplings = [LaneSampling(temperature=float(row > 0), seed=row, **kind) for row, kind in enumerate(kinds)]
    with npu_layout():
        expected = draw(logits, samplings)
    with interpreted_kernels() as launched:
        drawn = draw(logits, samplings)
    return launched, drawn, expected
