"""What this CPU can do, in the words of torch.cpu.get_capabilities(). torch 2.9, which NPUs need, has no such function: Linux is asked."""

from collections.abc import Mapping
from pathlib import Path

import torch

_CPU_INFO = Path("/proc/cpuinfo")
#: What Linux calls some of them; others have the same name.
_NAMES_OF_LINUX = {
    "sse3": "pni",
    "fma3": "fma",
    "bmi": "bmi1",
    "lzcnt": "abm",
    **{f"avx512_{part}": f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl")},
}
_SAME_NAMES = (
    *("ssse3", "sse4_1", "sse4_2", "popcnt", "avx2", "f16c", "bmi2"),
    *("avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
)
_X86_NAMES = _NAMES_OF_LINUX | {name: name for name in _SAME_NAMES}
#: By which torch's own products pick blocks and, on ARM, instructions.
_PROCESSOR = {
    **{"model name": "cpu_name", "cache size": "cache_size"},
    **{"CPU implementer": "cpu_implementer", "CPU part": "cpu_part", "Features": "features"},
}


def of_this_cpu() -> Mapping[str, object]:
    """Instructions (True where there are such), and what else is known of the processor."""
    known = getattr(torch.cpu, "get_capabilities", None)
    return known() if known is not None else read_cpu_info(_CPU_INFO.read_text() if _CPU_INFO.exists() else "")


def read_cpu_info(text: str) -> Mapping[str, object]:
    """The same from what Linux writes of its processors; of another architecture than x86 no instruction has a name of its own."""
    first, _, _ = text.partition("\n\n")  # of several, which are alike
    lines = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    flags = set(lines.get("flags", "").split())
    return {name: flag in flags for name, flag in _X86_NAMES.items()} | {
        name: lines[line] for line, name in _PROCESSOR.items() if line in lines
    }
