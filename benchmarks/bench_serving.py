"""Serving from two processes against one process and against peers on the same checkpoint: python -m benchmarks.bench_serving

Every round measures all of them, one after the other, so that their ratios hold on a machine whose speed drifts. The exit status is 1 when
a goal is missed.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.engine_process import EngineProcess
from benchmarks.machine import describe_machine
from benchmarks.report import Report, Row
from benchmarks.report_options import add_report_options, write_report
from benchmarks.two_processes import TwoProcesses, start_row
from scripts.demo import free_ports
from scripts.prepare_demo_model import prepare_demo_model
from tests.harness.checkpoints import make_checkpoint

#: Tokens per second of (streams, prompt tokens, generated tokens).
Measure = Callable[[int, int, int], float]

_GOALS = {"one process": 0.95, "transformers": 1.0, "vLLM over HTTP": 1.3}
_MAX_START_SECONDS = 2.0


def main() -> int:
    """Measure and report; returns the exit status."""
    options = _read_options()
    print(", ".join(describe_machine().values()))
    report, model = Report("serving"), options.model or prepare_demo_model()
    with tempfile.TemporaryDirectory() as directory, TwoProcesses(make_checkpoint(Path(directory), "qwen3")) as tiny:
        _print_start("a tiny model", tiny)
    with ExitStack() as stack:
        apart = stack.enter_context(TwoProcesses(model))
        _print_start(model.name, apart)
        report.add(start_row(apart, _MAX_START_SECONDS))
        peers = _start_peers(model, options.vllm, stack)
        for streams in options.streams:
            rounds = [_measure_round(apart, peers, streams, options) for _ in range(options.rounds + 1)][1:]
            _add_rows(report, streams, rounds)
            print("  ".join(_latencies(apart.summary)), "\n", flush=True)
    write_report(report, options)
    return 1 if report.num_missed else 0


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="model directory; default: the demo model")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32], help="sequences at once (default: 1 8 32)")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="tokens of each prompt (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of each answer (default: %(default)s)")
    add_report_options(parser)
    return parser.parse_args()


def _start_peers(model: Path, vllm: str | None, stack: ExitStack) -> Mapping[str, Measure]:
    def start(name: str, arguments: list[str], python: str | None = None) -> Measure:
        return stack.enter_context(EngineProcess(name, [str(model), *arguments], python)).tokens_per_second

    peers = {"one process": start("own", []), "transformers": start("transformers", [])}
    if vllm:
        peers["vLLM over HTTP"] = start("vllm_server", free_ports(1), vllm)
    return peers


def _print_start(name: str, processes: TwoProcesses) -> None:
    print(f"{name}: " + ", ".join(f"{process} serves after {seconds:.1f} s" for process, seconds in processes.seconds_to_ready.items()))


def _measure_round(apart: TwoProcesses, peers: Mapping[str, Measure], streams: int, options: argparse.Namespace) -> dict[str, float]:
    measures = {"two processes": apart.tokens_per_second, **peers}
    return {name: measure(streams, options.prompt_tokens, options.max_tokens) for name, measure in measures.items()}


def _add_rows(report: Report, streams: int, rounds: list[dict[str, float]]) -> None:
    for name in rounds[0].keys() - {"two processes"}:
        ratio = statistics.median(rates["two processes"] / rates[name] for rates in rounds)
        figures = " / ".join(f"{statistics.median(rates[each] for rates in rounds):.0f}" for each in ("two processes", name))
        report.add(Row(f"two processes, {streams} streams", name, f"{figures} tokens/s", ratio, _GOALS[name]))


def _latencies(summary: dict[str, Any]) -> Iterator[str]:
    """Latencies of the last load of the two processes."""
    for name, key in (("TTFT", "first_token"), ("TPOT", "per_token"), ("ITL", "gap")):
        figures = " / ".join(f"{summary[key][quantile] * 1e3:.0f}" for quantile in ("p50", "p95", "p99"))
        yield f"{name} {figures} ms (p50 / p95 / p99)"


if __name__ == "__main__":
    sys.exit(main())
