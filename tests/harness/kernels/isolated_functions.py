"""Functions that tests of the harness call in processes of their own."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import torch


def add(left: int, right: int) -> int:
    return left + right


def spin() -> None:
    print("going to spin", flush=True)
    while True:
        pass


def wait() -> None:
    threading.Event().wait()


def die() -> None:
    os._exit(3)


def fail() -> None:
    print("what PyPTO wrote", flush=True)
    raise ValueError("no such tile")


def where() -> tuple[str, list[str]]:
    """The working directory and what is in it."""
    return os.getcwd(), sorted(path.name for path in Path().iterdir())


def half_written(rows: int, written: int) -> list[list[float]]:
    """A kernel that leaves rows of its output as they were."""
    from harness.kernels.imperfect_kernels import copy_kernel

    from kernels.testing.interpreter import interpreted
    from kernels.testing.launches import poisoned_memory

    with interpreted(), poisoned_memory():
        out = torch.empty(rows, 32, dtype=torch.bfloat16)
        copy_kernel(torch.ones(rows, 32, dtype=torch.bfloat16), out, written)
    return out.float().tolist()


def not_a_number() -> list[float]:
    """A kernel whose results are NaN, which PyPTO itself lets pass."""
    from harness.kernels.imperfect_kernels import root_kernel

    from kernels.testing.interpreter import interpreted

    out = torch.ones(8, 32, dtype=torch.float32)
    with interpreted():
        root_kernel(torch.full((8, 32), -1.0), out)
    return out.flatten().tolist()


def broken_then_good() -> None:
    """A launch that cannot be compiled, and in the same process one that could."""
    from kernels.pypto.linear import linear_kernel
    from kernels.testing.interpreter import interpreted

    x, out = (torch.ones(*shape, dtype=torch.bfloat16) for shape in ((4, 64), (4, 32)))
    weight = torch.ones(32, 64, dtype=torch.bfloat16)
    with interpreted():
        with suppress(Exception):
            linear_kernel(x, weight, out, 16, 16, 128, 64, 64, 1)  # multiplies more at a time than it loads
        linear_kernel(x, weight, out, 16, 16, 64, 64, 64, 1)
