"""What all layers of a step need, made by the first of them."""

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class BatchMemo(Generic[T]):
    """The last result of `compute`, as long as the very tensors are alive that it was computed from.

    They must not be written to in between, as those of a captured step would be: this set of kernels is never captured.
    """

    def __init__(self, compute: Callable[..., T]) -> None:
        self._compute = compute
        self._tensors: tuple[weakref.ref[Tensor], ...] = ()
        self._result: list[T] = []

    def __call__(self, *tensors: Tensor) -> T:
        """compute(*tensors)."""
        if len(tensors) != len(self._tensors) or any(ref() is not tensor for ref, tensor in zip(self._tensors, tensors, strict=True)):
            self._result = [self._compute(*tensors)]
            self._tensors = tuple(weakref.ref(tensor) for tensor in tensors)
        return self._result[0]
