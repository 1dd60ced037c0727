"""Serving against transformers on the same checkpoint, and two processes against one: python -m benchmarks.bench_serving

Every round measures all of them, one after the other, so that their ratios hold on a machine whose speed drifts. The exit status is 1 when
a ratio is below its goal.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.one_process import OneProcess
from benchmarks.transformers_batch import TransformersBatch
from benchmarks.two_processes import TwoProcesses
from scripts.prepare_demo_model import prepare_demo_model
from tests.checkpoints import make_checkpoint

Measure = Callable[[int, int, int], float]

_GOAL_BY_PEER, _GOAL_BY_ONE = 1.0, 0.95
_COLUMNS = ("streams", "transformers", "one process", "two processes", "two / transformers", "two / one")


def main() -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Serving against transformers on the same checkpoint, and two processes against one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], help="sequences at once")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after one that is not counted")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = options.model or prepare_demo_model()
    with tempfile.TemporaryDirectory() as directory, TwoProcesses(make_checkpoint(Path(directory), "qwen3")) as tiny:
        _report_start("a tiny model", tiny)
    peer = TransformersBatch(model)
    with TwoProcesses(model) as apart, OneProcess(model) as together:
        _report_start(model.name, apart)
        print(f"\n{options.prompt_tokens} prompt tokens, {options.max_tokens} generated, bfloat16; tokens/s, medians of {options.rounds}\n")
        print("  ".join(_COLUMNS))
        measures = (peer.tokens_per_second, together.tokens_per_second, apart.tokens_per_second)
        missed = 0
        for streams in options.streams:
            rounds = [_round(measures, streams, options.prompt_tokens, options.max_tokens) for _ in range(options.rounds + 1)]
            missed += _report(streams, rounds[1:])
            print("  ".join(_latencies(apart.summary)), "\n", flush=True)
    return 1 if missed else 0


def _report_start(name: str, processes: TwoProcesses) -> None:
    print(f"{name}: " + ", ".join(f"{process} serves after {seconds:.1f} s" for process, seconds in processes.seconds_to_ready.items()))


def _round(measures: Sequence[Measure], streams: int, prompt_tokens: int, max_tokens: int) -> list[float]:
    return [measure(streams, prompt_tokens, max_tokens) for measure in measures]


def _report(streams: int, rounds: list[list[float]]) -> int:
    """Print medians; returns how many goals they miss."""
    rates = [statistics.median(each) for each in zip(*rounds, strict=True)]
    by_peer = statistics.median(apart / peer for peer, _, apart in rounds)
    by_one = statistics.median(apart / together for _, together, apart in rounds)
    figures = (str(streams), *(f"{rate:.1f}" for rate in rates), f"{by_peer:.2f}", f"{by_one:.2f}")
    print("  ".join(figure.rjust(len(column)) for figure, column in zip(figures, _COLUMNS, strict=True)))
    return (by_peer < _GOAL_BY_PEER) + (by_one < _GOAL_BY_ONE)


def _latencies(summary: dict[str, Any]) -> Iterator[str]:
    """Latencies of the last load of the two processes."""
    for name, key in (("TTFT", "first_token"), ("TPOT", "per_token"), ("ITL", "gap")):
        figures = " / ".join(f"{summary[key][quantile] * 1e3:.0f}" for quantile in ("p50", "p95", "p99"))
        yield f"{name} {figures} ms (p50 / p95 / p99)"


if __name__ == "__main__":
    sys.exit(main())
