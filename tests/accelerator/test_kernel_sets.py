"""PyPTO's kernels beside CANN's: prints one table to send back (docs/npu.md). A CPU plays both, with torch and with fakes."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import import_module

import pytest
import torch
from fakes.device.cann_operators import cann_operators
from harness.accelerator_runs import KIND, Accelerator
from harness.kernel_sets import TINY, Case, Comparison, KernelSet, Sizes, cann_set, cases, compare, format_table, in_parts
from torch import Tensor

from kernels.reference import attention, moe, rows


@pytest.fixture
def pypto(accelerator: Accelerator) -> KernelSet:
    return dict(import_module("kernels.pypto.registration").OPERATORS) if accelerator.is_real else _TORCH


@pytest.fixture
def cann(accelerator: Accelerator) -> Iterator[KernelSet]:
    with nullcontext() if accelerator.is_real else cann_operators():
        yield cann_set()


@pytest.mark.skipif(KIND == "cuda", reason="the two sets are of NPUs")
def test_both_sets_compute_the_same(
    accelerator: Accelerator, pypto: KernelSet, cann: KernelSet, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = Sizes() if accelerator.is_real else TINY
    found = [compare(case, pypto, cann, accelerator.device.synchronize) for case in cases(sizes, accelerator.device.torch_device)]
    with capsys.disabled() if accelerator.is_real else nullcontext():
        print(f"\n{format_table(found)}")
    assert {row.case.operator for row in found} >= set(pypto)
    assert [row for row in found if not row.is_close] == []


@pytest.mark.skipif(KIND != "cpu", reason="a device has better to do")
class TestComparison:
    """What the table says of sets that do not do the same."""

    def test_what_one_set_raises_is_in_its_place(self) -> None:
        found = self._compare(self._broken, lambda x: x * 2)
        assert found.pypto == "no such kernel" and isinstance(found.cann, float) and not found.is_close
        line = format_table([found]).splitlines()[2]
        assert line.startswith("| double | 2 | no such kernel | ") and line.endswith(" | nan |")

    def test_other_numbers_are_told_by_how_far_they_are_off(self) -> None:
        found = self._compare(lambda x: x * 2, lambda x: x * 2.5)
        assert (found.difference, found.greatest, found.is_close) == (0.5, 2.0, False)
        assert format_table([found]).endswith(" | 0.5 |")

    def test_what_is_written_counts(self) -> None:
        assert self._compare(lambda x: x.zero_()[:0].sum(), lambda x: x.add_(1)[:0].sum()).difference > 1
        assert self._compare(lambda x: x.zero_()[:0].sum(), lambda x: x[:0].sum()).difference == float("inf")

    def test_nan_is_no_number_that_is_close(self) -> None:
        def write_nan(x: Tensor) -> Tensor:
            x.fill_(float("nan"))
            return torch.zeros(2)

        def write_zeros(x: Tensor) -> Tensor:
            x.zero_()
            return torch.zeros(2)

        assert not self._compare(write_zeros, write_nan).is_close
        assert not self._compare(write_nan, write_nan).is_close

    def test_indices_have_to_be_the_same(self) -> None:
        assert not self._compare(lambda x: x.long(), lambda x: x.long() + 1).is_close
        assert self._compare(lambda x: x.long(), lambda x: x.int()).is_close

    def _compare(self, ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor]) -> Comparison:
        return compare(Case("double", "2", (torch.ones(2),)), {"double": ours}, {"double": theirs}, lambda: None)

    def _broken(self, x: Tensor) -> Tensor:
        raise RuntimeError("no such kernel\nat all")


_TORCH: KernelSet = {
    "rms_norm": rows.rms_norm,
    "add_rms_norm": rows.add_rms_norm,
    "swiglu": rows.swiglu,
    "linear": rows.linear,
    "embedding": rows.embedding,
    "argmax": rows.argmax,
    "top_k": rows.top_k,
    "qk_rope_kv_write": in_parts(
        rows.rms_norm,
        lambda query, key, positions, *angles: rows.rotary(query, key, positions.long(), *angles),
        lambda key, value, k_cache, v_cache, slots: rows.write_kv(key, value, k_cache, v_cache, slots.long()),
    ),
    "paged_attention": lambda q, k, v, table, starts, positions, *others: attention.paged_attention(
        q, k, v, table, starts, positions.long(), *others
    ),
    "moe_route": moe.moe_route,
    "moe_experts": lambda x, weights, ids, *experts: moe.moe_experts(x, weights, ids.long(), *experts),
}
