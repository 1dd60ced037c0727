"""Counts what the host asks of an NPU: launches of kernels, and calls of torch that compute or copy there. Nothing is launched."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import ops
from kernels.pypto.registration import OPERATORS
from kernels.testing.launches import taken_over


@dataclass(frozen=True, slots=True)
class Asked:
    """How often, by name, and the tensors of each launch."""

    launches: Counter[str] = field(default_factory=Counter)
    torch_calls: Counter[str] = field(default_factory=Counter)
    operands: list[tuple[str, Sequence[Tensor]]] = field(default_factory=list)


@contextmanager
def counted() -> Iterator[Asked]:
    """Count what is asked for inside the block; kernels leave their results as they are."""
    asked = Asked()

    def launch(kernel: Any, tensors: Sequence[Tensor], _: Sequence[Any]) -> None:
        asked.launches[kernel.__name__] += 1
        asked.operands.append((kernel.__name__, tensors))

    with taken_over(launch), _TorchCalls(asked.torch_calls):
        yield asked


class _TorchCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts all calls but those that only make a view or take memory; operators that have a kernel are followed into their functions."""

    def __init__(self, calls: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        namespace, _, name = func.name().partition("::")
        kwargs = kwargs or {}
        with self:
            if namespace == ops.NAMESPACE and name in OPERATORS:
                return OPERATORS[name](*args, **kwargs)
            whole = func.decompose(*args, **kwargs)  # in inference mode torch has not taken calls apart yet
        if whole is not NotImplemented:
            return whole
        if not func.is_view and not name.startswith(("empty", "new_empty")):
            self._calls[name] += 1
        return func(*args, **kwargs)
