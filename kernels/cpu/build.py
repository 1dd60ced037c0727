"""Builds the C++ forms: `python -m kernels.cpu.build`. Needs g++ and the headers that torch's own package carries, nothing else.

For the level of instructions that the CPU has, or that PYPTO_CPU_LEVEL names."""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from kernels.cpu.extension import BUILDS, FLAGS, LEVELS, SOURCES, file_stem, level

_TORCH = Path(torch.__file__).parent


class BuildError(RuntimeError):
    """The compiler is missing or refused a source."""


def build(compiler: str) -> Path:
    """Compiles and links whatever this compiler has not yet built, and returns the library. Safe beside other builds."""
    version = _run([compiler, "--version"]).splitlines()[0]
    library = BUILDS / f"{file_stem()}-{hashlib.sha256(version.encode()).hexdigest()[:4]}.so"
    if library.exists():
        return library
    BUILDS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILDS) as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: _compile(compiler, version, source, Path(scratch)), sorted(SOURCES.glob("*.cpp"))))
        linked = Path(scratch) / library.name
        # No -fopenmp here: its symbols come from the OpenMP that torch brings along, and with it one pool of threads for both.
        _run([compiler, "-shared", *map(str, objects), "-o", str(linked), f"-L{_TORCH / 'lib'}", "-lc10", "-ltorch_cpu"])
        linked.replace(library)
    return library


def _compile(compiler: str, version: str, source: Path, scratch: Path) -> Path:
    """The object of a source, compiled unless an earlier build has it from the same texts."""
    command = [compiler, *FLAGS, *LEVELS[level()][0], "-isystem", str(_TORCH / "include"), "-c", str(source)]
    digest = hashlib.sha256(" ".join((version, torch.__version__, *command)).encode())
    for path in sorted(_with_headers(source)):
        digest.update(path.read_bytes())
    target = BUILDS / "objects" / f"{source.stem}-{level()}-{digest.hexdigest()[:12]}.o"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        fresh = scratch / target.name
        _run([*command, "-o", str(fresh)])
        fresh.replace(target)
    return target


def _with_headers(source: Path) -> set[Path]:
    """The source and the headers of ours that it includes, by way of others too."""
    found, open_paths = {source}, [source]
    while open_paths:
        names = re.findall(r'^#include "(.*)"', open_paths.pop().read_text(), re.MULTILINE)
        open_paths += {SOURCES / name for name in names} - found
        found.update(open_paths)
    return found


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, check=True, text=True, capture_output=True).stdout
    except FileNotFoundError:
        raise BuildError(f"no compiler {command[0]!r}: install g++, or name one with --compiler") from None
    except subprocess.CalledProcessError as failure:
        raise BuildError(f"{' '.join(command)}\n{failure.stderr}") from None


def main() -> int:
    """Command line: builds, says what it did in one line, and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kernels.cpu.build", description=__doc__)
    parser.add_argument("--compiler", default="g++", help="C++ compiler (default: %(default)s)")
    started = time.monotonic()
    try:
        library = build(parser.parse_args().compiler)
    except (BuildError, ValueError) as error:
        print(f"kernels.cpu.build: {error}", file=sys.stderr)
        return 1
    print(f"{library} ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
