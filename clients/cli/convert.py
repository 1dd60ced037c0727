"""`convert`: a model directory from a GGUF file."""

import argparse
import json
import subprocess
from importlib.util import find_spec
from pathlib import Path

from clients.cli.command import Command, ExitCode, UsageError
from clients.progress import progress_bar
from pypto_serving.process.tied import tied_command

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
        gguf, directory = arguments.gguf.expanduser(), arguments.directory.expanduser()
        if not gguf.is_file():
            raise UsageError(f"convert: {gguf}: {'a directory, no GGUF file' if gguf.is_dir() else 'no such file'}")
        if directory.exists():
            raise UsageError(f"convert: {directory} exists already; name a directory that does not")
        code = _convert(gguf, directory, arguments.dtype)
        if code == ExitCode.OK:
            print(f"{directory}: serve it with `pypto-serving serve --model {directory}`")
        return code


def _convert(gguf: Path, directory: Path, dtype: str) -> int:
    """In a process group of its own, so that an interrupt is ours to pass on: it cleans up without a word."""
    command = tied_command("worker.gguf_conversion", [str(gguf), str(directory), dtype])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout is not None
        try:
            for first in process.stdout:
                with progress_bar("converting", json.loads(first)["count"], "tensors") as advance:
                    advance()
                    for line in process.stdout:
                        advance(note=json.loads(line)["tensor"])
        except BaseException:
            process.terminate()
            raise
    return process.returncode
