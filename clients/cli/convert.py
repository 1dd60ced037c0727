"""`convert`: a model directory from a GGUF file."""

import argparse
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from clients.cli.command import Command, ExitCode, UsageError
from clients.progress import progress_bar

_DESCRIPTION = """\
Write a Hugging Face directory from a GGUF file, whose weights are dequantized. It covers Llama models with the tokenizers that are
known; anything else is refused. The directory appears when it is complete."""


class Convert(Command):
    """Runs the conversion, which takes torch, as a process of its own."""

    name = "convert"
    summary = "make a model directory of a GGUF file"
    asks_a_server = False
    examples = ("model.gguf ~/models/my-model",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.description = _DESCRIPTION
        parser.add_argument("gguf", type=Path, metavar="FILE", help="GGUF file")
        parser.add_argument("directory", type=Path, metavar="DIR", help="directory to make; it must not exist")
        parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the weights (%(default)s)")

    def run(self, arguments: argparse.Namespace) -> int:
        missing = [package for package in ("torch", "gguf", "tokenizers", "safetensors") if find_spec(package) is None]
        if missing:
            raise UsageError(f"convert: no package {missing[0]!r} here: pip install 'pypto-serving[convert]'")
        command = [sys.executable, "-m", "worker.gguf_conversion", str(arguments.gguf), str(arguments.directory), arguments.dtype]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for first in process.stdout:
                with progress_bar("converting", json.loads(first)["count"], "tensors") as advance:
                    advance()
                    for line in process.stdout:
                        advance(note=json.loads(line)["tensor"])
        if process.returncode == 0:
            print(f"{arguments.directory}: serve it with `pypto-serving serve --model {arguments.directory}`")
        return ExitCode.OK if process.returncode == 0 else ExitCode.FAILED
