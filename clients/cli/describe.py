"""`describe`: what a model needs, and what of it this machine has."""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

from clients.cli.command import Command, ExitCode, UsageError
from clients.cli.model_summary import ModelSummary, ModelUnreadable, summarize
from pypto_serving.process.argument_types import positive

_WEIGHTS = {"float32": 32.0, "bfloat16": 16.0, "int8": 8.0, "int4": 4.5}  # bits of each; int4 with a scale of 16 bits for 32 of them
_RESERVED = 1 << 30  # of a worker itself, roughly: torch, buffers of a step


class Describe(Command):
    """Prints sizes; reads the heads of files only."""

    name = "describe"
    summary = "say what a model directory holds and needs, and what fits on this machine"
    asks_a_server = False
    examples = ("~/models/Qwen3-0.6B", "~/models/Qwen3-0.6B --json")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", type=Path, metavar="DIR", help="Hugging Face directory of the model")
        parser.add_argument("--page-tokens", type=positive, default=16, metavar="N", help="tokens per page of the KV cache (%(default)s)")
        parser.add_argument("--json", action="store_true", help="one JSON object")

    def run(self, arguments: argparse.Namespace) -> int:
        try:
            summary = summarize(arguments.model.expanduser())
        except ModelUnreadable as error:
            raise UsageError(str(error)) from None
        if arguments.json:
            sizes = {
                "kv_token_bytes": summary.kv_token_bytes(),
                "loaded_bytes": {name: summary.loaded_bytes(_WEIGHTS[name]) for name in _WEIGHTS},
            }
            print(json.dumps(asdict(summary) | sizes))
        else:
            print("\n".join(_lines(summary, arguments.page_tokens, free_bytes())))
        return ExitCode.OK


def _lines(summary: ModelSummary, page_tokens: int, free: int) -> list[str]:
    stored = ", ".join(f"{dtype} {count:,}" for dtype, count in sorted(summary.dtypes.items()))
    token = summary.kv_token_bytes()
    return [
        f"model         {summary.name}",
        f"architecture  {summary.architecture}",
        f"parameters    {summary.num_parameters:,} ({stored}); {size(summary.weights_bytes)} as stored",
        f"context       {summary.max_tokens:,} tokens, vocabulary of {summary.vocab_size:,}",
        f"layers        {summary.num_layers}, with {summary.num_kv_heads} key and value heads of {summary.head_dim}",
        f"KV cache      {size(token)} per token, {size(token * page_tokens)} per page of {page_tokens}, "
        f"{size(token * summary.max_tokens)} for a whole context (bfloat16)",
        "weights       " + ", ".join(f"{name} {size(summary.loaded_bytes(bits))}" for name, bits in _WEIGHTS.items()),
        *(f"with {name:9}{_fit(summary, bits, free)}" for name, bits in _WEIGHTS.items()),
    ]


def _fit(summary: ModelSummary, bits: float, free: int) -> str:
    left = free - _RESERVED - summary.loaded_bytes(bits)
    if left <= 0:
        return f"does not fit into the {size(free)} of memory that are free here: {size(-left)} are missing"
    tokens = left // summary.kv_token_bytes(32 if bits > 16 else 16)
    contexts = f"{tokens / summary.max_tokens:.1f} whole contexts"
    return f"{size(left)} of the {size(free)} free here are left for the KV of {tokens:,} tokens, {contexts}"


def free_bytes() -> int:
    """Memory that this machine, or the control group of this process, has left."""
    return min(_available(), _left_of_group())


def _available() -> int:
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _left_of_group() -> int:
    group = Path("/sys/fs/cgroup")
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no group, or no limit
        return 1 << 62


def size(num_bytes: int) -> str:
    """In words."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} bytes"
