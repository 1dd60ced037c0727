"""Finding and loading the C++ kernels.

A build belongs to one text of the sources, one torch and one level of instructions: its file name carries the level and a digest of the
others, so that a stale build is never loaded. A wheel may bring builds for several levels, and `python -m kernels.cpu.build` makes one.
The best level that this CPU runs and that was built is loaded; a build of the user's own goes before a prebuilt one.

The environment variable PYPTO_CPU_LEVEL names another level, for building and for loading.
"""

import hashlib
import logging
import os
import platform
from pathlib import Path

import torch

from kernels.cpu import capabilities

SOURCES = Path(__file__).parent
PREBUILT = SOURCES / "prebuilt"
_PREFIX = "pypto_serving-"

_log = logging.getLogger(__name__)

# A product is always fused with the sum it goes into, where the level has such instructions, and nothing is reassociated: the same bits
# for a row on every path. Tuning for one processor would decide which sums are fused: two processors of a level get the same code.
FLAGS = ("-O3", "-mtune=generic", "-ffp-contract=fast", "-std=gnu++20", "-fPIC", "-fopenmp", "-Wall", "-Wno-psabi")

# Compiler flags of each level, best first, and what a CPU must have for it, in the words of kernels.cpu.capabilities.
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
    has = capabilities.of_this_cpu()
    return [name for name, (_, needs) in LEVELS.items() if all(has.get(need) for need in needs)]


def level() -> str | None:
    """The level that PYPTO_CPU_LEVEL asks for, or None. Raises SettingRefused when it names none that this CPU can run."""
    chosen = os.environ.get("PYPTO_CPU_LEVEL") or None
    if chosen and chosen not in levels():
        raise SettingRefused(f"PYPTO_CPU_LEVEL={chosen}: this CPU runs {', '.join(levels())}")
    return chosen


def user_builds() -> Path:
    """Where builds on demand are kept: PYPTO_SERVING_CACHE, or pypto-serving within XDG_CACHE_HOME or ~/.cache.

    Not beside the sources: an installed package may belong to another user, or be shared by several machines.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("PYPTO_SERVING_CACHE") or Path(cache, "pypto-serving")).absolute() / "cpu-kernels"


def load() -> str | None:
    """Registers the C++ kernels that were built for this source, torch and CPU; returns level and digests, or None if there are none."""
    forced = level()
    for name in [forced] if forced else levels():
        for library in built(name):
            try:
                torch.ops.load_library(library)  # type: ignore[no-untyped-call]
            except OSError as error:  # for example built on a system with a newer C library
                _log.warning("C++ kernels cannot be loaded", extra={"library": str(library), "reason": str(error)})
                continue
            return library.stem.removeprefix(_PREFIX)
    return None


def built(name: str) -> list[Path]:
    """The builds of a level for this source and torch, those to be preferred first."""
    return [path for folder in (user_builds(), PREBUILT) for path in sorted(folder.glob(f"{file_stem(name)}-*.so"), reverse=True)]


def file_stem(name: str) -> str:
    """The name of a level's build up to the compiler's digest, which the build adds and which loading does not need."""
    digest = hashlib.sha256(" ".join((torch.__version__, platform.machine(), *FLAGS, *LEVELS[name][0])).encode())
    for path in sorted(SOURCES.glob("*.cpp")) + sorted(SOURCES.glob("*.h")):
        digest.update(path.name.encode() + path.read_bytes())
    return f"{_PREFIX}{name}-{digest.hexdigest()[:12]}"
