"""Builds the C++ kernels: `python -m kernels.cpu.build`. Needs g++ and the headers that torch's own package carries, nothing else.

For the best level of instructions that the CPU has, or that PYPTO_CPU_LEVEL or --level names; into the user's cache, or --into a folder."""

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

from kernels.cpu.extension import FLAGS, LEVELS, SOURCES, file_stem, level, levels, user_builds

_TORCH = Path(torch.__file__).parent


class BuildError(RuntimeError):
    """The compiler is missing or refused a source, or there is nothing to compile."""


def build(compiler: str, name: str, folder: Path) -> Path:
    """Compiles and links for a level whatever this compiler has not yet built, and returns the library. Safe beside other builds."""
    sources = sorted(SOURCES.glob("*.cpp"))
    if not sources:
        raise BuildError(f"no C++ sources in {SOURCES}: this installation lacks them")
    version = _run([compiler, "--version"]).splitlines()[0]
    library = folder / f"{file_stem(name)}-{hashlib.sha256(version.encode()).hexdigest()[:4]}.so"
    if library.exists():
        return library
    objects = user_builds() / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=objects) as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(lambda source: _compile(compiler, version, name, source, Path(scratch)), sources))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        linked = Path(scratch) / library.name
        # No -fopenmp here: its symbols come from the OpenMP that torch brings along, and with it one pool of threads for both.
        _run([compiler, "-shared", *map(str, compiled), "-o", str(linked), f"-L{_TORCH / 'lib'}", "-lc10", "-ltorch_cpu"])
        linked.replace(library)
    return library


def _compile(compiler: str, version: str, name: str, source: Path, scratch: Path) -> Path:
    """The object of a source, compiled unless an earlier build has it from the same texts, wherever they lay."""
    flags = [*FLAGS, *LEVELS[name][0]]
    digest = hashlib.sha256(" ".join((version, compiler, torch.__version__, *flags)).encode())
    for path in sorted(_with_headers(source)):
        digest.update(path.read_bytes())
    target = scratch.parent / f"{source.stem}-{name}-{digest.hexdigest()[:12]}.o"
    if not target.exists():
        fresh = scratch / target.name
        places = [f"-ffile-prefix-map={SOURCES}=kernels/cpu", "-isystem", str(_TORCH / "include")]
        _run([compiler, *flags, *places, "-c", str(source), "-o", str(fresh)])
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
    parser.add_argument("--level", choices=LEVELS, help="instructions to compile for, whether this CPU has them or not (default: its best)")
    parser.add_argument("--into", type=Path, help=f"folder for the library (default: {user_builds()})")
    options = parser.parse_args()
    started = time.monotonic()
    try:
        library = build(options.compiler, options.level or level() or levels()[0], options.into or user_builds())
    except (BuildError, ValueError) as error:
        print(f"kernels.cpu.build: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"kernels.cpu.build: {error.filename}: {error.strerror}; PYPTO_SERVING_CACHE or --into name other folders", file=sys.stderr)
        return 1
    print(f"{library} ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
