"""What the machine is, and the rates that bound what a model can reach on it."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from worker.host import num_host_cores

_INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm", "sve")
_BUFFER_BYTES = 1 << 30
_HUGE_PAGE = 2 << 20
_ROUNDS = 3
_SIDE = 2048


def describe_machine() -> dict[str, str]:
    """The processor's name, its number of usable cores, and those of its instruction sets that matter to products of matrices."""
    fields = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if ":" in line)
    values = {name.strip(): value.strip() for name, value in fields.items()}
    features = values.get("flags", values.get("Features", "")).split()
    return {
        "processor": values.get("model name", "unknown"),
        "cores": str(len(os.sched_getaffinity(0))),
        "instruction sets": " ".join(name for name in _INSTRUCTION_SETS if name in features),
    }


class MachineRates:
    """Reading memory and multiplying bfloat16 matrices on as many threads as a worker takes, measured again at every call."""

    def __init__(self) -> None:
        torch.set_num_threads(num_host_cores())
        self._buffer = _in_huge_pages(_BUFFER_BYTES).fill_(1.0)  # by the threads that will read it
        self._matrix = torch.randn(_SIDE, _SIDE).bfloat16()

    def bytes_per_second(self) -> float:
        """Reading 1 GiB as weights lie and are read at best: in huge pages, front to back in as many parts as there are threads.

        The best of some rounds: it is a bound, and a decode step is longer than what disturbs one of them.
        """
        return _BUFFER_BYTES / min(_seconds(self._buffer.sum) for _ in range(_ROUNDS))

    def operations_per_second(self) -> float:
        """Multiplications and additions of torch.matmul of 2048 x 2048 x 2048 in bfloat16."""
        return 2 * _SIDE**3 / _seconds(lambda: self._matrix @ self._matrix)


def _in_huge_pages(num_bytes: int) -> torch.Tensor:
    """Memory as fp32 numbers, which no thread has touched yet."""
    mapped = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    numbers = torch.frombuffer(mapped, dtype=torch.float32)
    return numbers[-numbers.data_ptr() % _HUGE_PAGE // 4 :][: num_bytes // 4]


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
