"""Finding and loading the C++ forms.

A build belongs to one text of the sources, one torch and one instruction set: its file name carries a digest of these, so that a
stale build is never loaded. `python -m kernels.cpu.build` makes it.
"""

import hashlib
import platform
from pathlib import Path

import torch

SOURCES = Path(__file__).parent
BUILDS = SOURCES.parents[1] / "build" / "kernels"
# A product is always fused with the sum it goes into, and nothing is reassociated: the same bits for a row on every path.
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=gnu++20", "-fPIC", "-fopenmp", "-Wall", "-Wno-psabi")


def load() -> str | None:
    """Registers the C++ forms that were built for this source, torch and CPU; returns the build's digest, or None if there is none."""
    built = sorted(BUILDS.glob(f"{file_stem()}-*.so"))
    if not built:
        return None
    torch.ops.load_library(built[-1])  # type: ignore[no-untyped-call]
    return built[-1].stem.removeprefix("pypto_serving-")


def file_stem() -> str:
    """The name of a build up to the compiler's digest, which the build adds and which loading does not need."""
    digest = hashlib.sha256(" ".join((torch.__version__, platform.machine(), _instruction_set(), *FLAGS)).encode())
    for path in sorted(SOURCES.glob("*.cpp")) + sorted(SOURCES.glob("*.h")):
        digest.update(path.name.encode() + path.read_bytes())
    return f"pypto_serving-{digest.hexdigest()[:12]}"


def _instruction_set() -> str:
    """The CPU's feature list as the kernel prints it, the processor's name where it prints none."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        with cpuinfo.open() as lines:
            for line in lines:
                if line.startswith(("flags", "Features")):
                    return line.partition(":")[2].strip()
    return platform.processor()
