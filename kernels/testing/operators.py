"""Calls the operators of `kernels.pypto` in processes of their own; this one never imports PyPTO."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from kernels.testing.depth import Depth
from kernels.testing.isolation import run_isolated


def interpret(operator: str, *args: Any, depth: Depth = Depth.TENSOR_GRAPH) -> tuple[list[Tensor], list[Any]]:
    """Call "module:name" of `kernels.pypto` through the interpreter: its results, and its arguments as it left them.

    Memory that the operator allocates holds NaN, or the greatest integer, wherever its kernels did not write. Raises IsolatedFailure.
    """
    results, arguments = run_isolated(f"{__name__}:_interpret", operator, _pack(args), depth)
    return _unpack(results), _unpack(arguments)


def call_on_device(operator: str, *args: Any, device: torch.device) -> tuple[list[Tensor], list[Any]]:
    """The same on a device that PyPTO drives, in this process: tensors go there and come back."""
    there = [value.to(device) if isinstance(value, Tensor) else value for value in args]
    results = _as_tuple(_find(operator)(*there))
    return [result.cpu() for result in results], [value.cpu() if isinstance(value, Tensor) else value for value in there]


def price(operator: str, *args: Any) -> int:
    """Cost-model cycles of all launches that a call makes. Raises IsolatedFailure."""
    cycles: int = run_isolated(f"{__name__}:_price", operator, _pack(args))
    return cycles


def _interpret(operator: str, args: list[Any], depth: Depth) -> tuple[list[Any], list[Any]]:
    from kernels.testing.interpreter import interpreted
    from kernels.testing.launches import poisoned_memory

    unpacked = _unpack(args)
    with interpreted(depth), poisoned_memory():
        results = _as_tuple(_find(operator)(*unpacked))
    return _pack(results), _pack(unpacked)


def _price(operator: str, args: list[Any]) -> int:
    from kernels.testing.cost_model import priced

    with priced() as cycles:
        _find(operator)(*_unpack(args))
    return sum(cycles)


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else () if results is None else (results,)


def _find(operator: str) -> Any:
    module, _, name = operator.partition(":")
    return getattr(import_module(f"kernels.pypto.{module}"), name)


def _pack(values: Any) -> list[Any]:
    """Tensors as raw bytes: torch would send them through shared memory, which outlives no process."""
    return [(value.dtype, tuple(value.shape), _bytes(value)) if isinstance(value, Tensor) else value for value in values]


def _unpack(values: Any) -> list[Any]:
    return [_tensor(*value) if isinstance(value, tuple) and isinstance(value[0], torch.dtype) else value for value in values]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], raw: bytes) -> Tensor:
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
