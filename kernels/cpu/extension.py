"""Finding and loading the C++ forms.

A build belongs to one text of the sources, one torch and one level of instructions: its file name carries the level and a digest of the
others, so that a stale build is never loaded. `python -m kernels.cpu.build` makes it.

The environment variable PYPTO_CPU_LEVEL chooses a lower level than the CPU's best, for building and for loading.
"""

import hashlib
import os
import platform
from pathlib import Path

import torch

SOURCES = Path(__file__).parent
BUILDS = SOURCES.parents[1] / "build" / "kernels"
_PREFIX = "pypto_serving-"

# A product is always fused with the sum it goes into, where the level has such instructions, and nothing is reassociated: the same bits
# for a row on every path. Tuning for one processor would decide which sums are fused: two processors of a level get the same code.
FLAGS = ("-O3", "-mtune=generic", "-ffp-contract=fast", "-std=gnu++20", "-fPIC", "-fopenmp", "-Wall", "-Wno-psabi")

# Compiler flags of each level, best first, and what a CPU must have for it, in the words of torch.cpu.get_capabilities().
_V3 = ("avx2", "fma3", "f16c", "bmi", "bmi2", "lzcnt")
_V4 = (*_V3, "avx512_f", "avx512_bw", "avx512_cd", "avx512_dq", "avx512_vl")
LEVELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "avx512_bf16": (("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"), (*_V4, "avx512_bf16", "avx512_vnni")),
    "avx512": (("-march=x86-64-v4",), _V4),
    "avx2": (("-march=x86-64-v3",), _V3),
    "sse4": (("-march=x86-64-v2",), ("sse3", "ssse3", "sse4_1", "sse4_2", "popcnt")),
    "generic": ((), ()),  # what the compiler takes for the architecture's least; on aarch64 NEON
}


class SettingRefused(ValueError):
    """A variable of the environment has a value that is none of those it takes; the message is one line that names them."""


def levels() -> list[str]:
    """The levels that this CPU can run, best first."""
    capabilities = torch.cpu.get_capabilities()
    return [name for name, (_, needs) in LEVELS.items() if all(capabilities.get(need) for need in needs)]


def level() -> str:
    """The level to build and to load. Raises SettingRefused when PYPTO_CPU_LEVEL names none that this CPU can run."""
    available = levels()
    chosen = os.environ.get("PYPTO_CPU_LEVEL") or available[0]
    if chosen not in available:
        raise SettingRefused(f"PYPTO_CPU_LEVEL={chosen}: this CPU runs {', '.join(available)}")
    return chosen


def load() -> str | None:
    """Registers the C++ forms that were built for this source, torch and level; returns level and digests, or None if there are none."""
    built = sorted(BUILDS.glob(f"{file_stem()}-*.so"))
    if not built:
        return None
    torch.ops.load_library(built[-1])  # type: ignore[no-untyped-call]
    return built[-1].stem.removeprefix(_PREFIX)


def file_stem() -> str:
    """The name of a build up to the compiler's digest, which the build adds and which loading does not need."""
    digest = hashlib.sha256(" ".join((torch.__version__, platform.machine(), *FLAGS, *LEVELS[level()][0])).encode())
    for path in sorted(SOURCES.glob("*.cpp")) + sorted(SOURCES.glob("*.h")):
        digest.update(path.name.encode() + path.read_bytes())
    return f"{_PREFIX}{level()}-{digest.hexdigest()[:12]}"
