"""What the machine is, and the rates that bound what a model can reach on it."""

import os
import time
from pathlib import Path

import torch

_INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm", "sve")
_BUFFER_BYTES = 1 << 30
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
    """Reading memory and multiplying bfloat16 matrices on all threads of torch, measured again at every call."""

    def __init__(self) -> None:
        self._buffer = torch.ones(_BUFFER_BYTES // 4, dtype=torch.int32)
        self._matrix = torch.randn(_SIDE, _SIDE).bfloat16()

    def bytes_per_second(self) -> float:
        """Reading 1 GiB once, front to back in as many parts as there are threads."""
        return _BUFFER_BYTES / _seconds(lambda: self._buffer.max())

    def operations_per_second(self) -> float:
        """Multiplications and additions of torch.matmul of 2048 x 2048 x 2048 in bfloat16."""
        return 2 * _SIDE**3 / _seconds(lambda: self._matrix @ self._matrix)


def _seconds(call: object) -> float:
    assert callable(call)
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
