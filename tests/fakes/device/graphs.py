"""Graphs without a device: what was recorded runs again, over the tensors that it was recorded with."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from worker.batch import Hidden

#: Operators that wait for the device, or whose result has a shape that only the device knows.
_WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "repeat_interleave", "_unique", "unique", "item", "is_nonzero")


class _Capturable(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not func.name().removeprefix("aten::").startswith(_WAITING), f"{func.name()} cannot be captured"
        if func.name().startswith(("aten::index.Tensor", "aten::index_put")):
            assert all(index is None or index.dtype != torch.bool for index in args[1]), f"{func.name()} by a mask cannot be captured"
        return func(*args, **(kwargs or {}))


@contextmanager
def capturable() -> Iterator[None]:
    """Fails where an operator could not be captured into a graph."""
    with _Capturable():
        yield


class FakeCapture:
    """Records launches; counts what was replayed."""

    def __init__(self) -> None:
        self.num_replayed = 0

    def __call__(self, launch: Callable[[], Hidden]) -> Callable[[], Hidden]:
        """A replay whose result are always the same tensors, as a device's graph has it."""
        with capturable():
            output = launch()

        def replay() -> Hidden:
            self.num_replayed += 1
            for kept, new in zip(output, launch(), strict=True):
                kept.copy_(new)
            return output

        return replay
