"""What a worker would find on this machine, as JSON lines of level, subject and text: python -m worker.machine_check [MODEL]."""

import json
import logging
import os
import sys
from pathlib import Path


def main() -> int:
    """Print the findings; returns the exit code."""
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    logging.disable()
    import torch

    from kernels.cpu import extension

    _tell("ok", "torch", torch.__version__)
    if torch.cuda.is_available():
        _tell("ok", "device", f"cuda: {torch.cuda.get_device_name()}")
    elif torch.version.cuda:
        _tell("warn", "device", f"cpu: torch is built for CUDA {torch.version.cuda} and finds no device; a CPU build is smaller")
    else:
        _tell("ok", "device", "cpu")
    _tell_kernels(extension.levels(), extension.load())
    if sys.argv[1:]:
        _tell_model(Path(sys.argv[1]))
    return 0


def _tell_kernels(levels: list[str], loaded: str | None) -> None:
    if loaded is None:
        _tell("warn", "kernels", f"none compiled for {levels[0]}: torch serves, slowly; `python -m kernels.cpu.build` compiles them")
    elif not loaded.startswith(levels[0]):
        _tell("warn", "kernels", f"{loaded}: this CPU runs {levels[0]}; `python -m kernels.cpu.build` compiles them for it")
    else:
        _tell("ok", "kernels", loaded)


def _tell_model(directory: Path) -> None:
    from worker.checkpoint.checkpoint import Checkpoint
    from worker.checkpoint.config_fields import ModelRefused
    from worker.models.registry import check_architecture

    try:
        _tell("ok", "architecture", f"{check_architecture(Checkpoint(directory))} is served")
    except ModelRefused as error:
        _tell("wrong", "architecture", str(error))


def _tell(level: str, subject: str, text: str) -> None:
    print(json.dumps([level, subject, text]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
