"""A model of Qwen3-0.6B's shape against other engines and against the machine: python -m benchmarks.bench_model

Weights are random: what is measured does not depend on them. Every round measures all engines, one after the other, while the others
stand still; figures are medians over the rounds. The exit status is 1 when a goal is missed.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engine_process import EngineProcess
from benchmarks.machine import MachineRates, describe_machine
from benchmarks.qwen3_gguf import write_gguf
from benchmarks.report import Report, Row
from benchmarks.report_options import add_report_options, write_report
from benchmarks.two_processes import TwoProcesses, start_row
from tests.harness.checkpoints import QWEN3_0_6B, make_checkpoint

_SHAPE: dict[str, Any] = {**QWEN3_0_6B, "max_position_embeddings": 40_960, "rope_theta": 1e6}
_LAYER_WEIGHTS = 1024 * (4096 + 2048 + 3 * 3072)
_HEAD_WEIGHTS = 151_936 * 1024
_BYTES_PER_TOKEN = 2 * (28 * _LAYER_WEIGHTS + _HEAD_WEIGHTS)  # read by a decode step: every weight once
_DECODE_PROMPT, _DECODE_TOKENS = 32, 64
_LANES, _PROMPTS = (1, 8, 32), (512, 4096)
_DECODE_GOALS = {"vllm": 1.2, "llama_cpp": 1.0, "transformers": 1.0}
_PREFILL_GOALS = dict.fromkeys(_DECODE_GOALS, 1.0)
_MAX_START_SECONDS = 3.0
_KV_PAGES, _PAGE_BYTES = 512, 16 * 28 * 2 * 8 * 128 * 2


def main() -> int:
    """Measure and report; returns the exit status."""
    options = _read_options()
    print(", ".join(describe_machine().values()))
    report = Report("model")
    with tempfile.TemporaryDirectory() as directory:
        model = options.model or make_checkpoint(Path(directory), "qwen3", "bfloat16", **_SHAPE)
        with ExitStack() as stack:
            engines = [stack.enter_context(engine) for engine in _start(model, options)]
            _compare(engines, report, options.rounds)
            _compare_with_machine(engines[0], report, options.rounds)
            int8 = stack.enter_context(EngineProcess("own", [str(model), "--quantize", "int8"]))
            _compare_int8(engines[0], int8, report, options.rounds)
        _watch_worker(model, report)
    write_report(report, options)
    return 1 if report.num_missed else 0


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="directory of a model of this shape; default: made for the occasion")
    add_report_options(parser)
    return parser.parse_args()


def _start(model: Path, options: argparse.Namespace) -> list[EngineProcess]:
    """Ours first, then the peers that are there."""
    engines = [EngineProcess("own", [str(model)]), EngineProcess("transformers", [str(model)])]
    if options.vllm:
        engines.append(EngineProcess("vllm", [str(model)], options.vllm))
    if options.llama_cpp:
        engines.append(EngineProcess("llama_cpp", [str(write_gguf(model, model / "model.gguf"))], options.llama_cpp))
    return engines


def _compare(engines: list[EngineProcess], report: Report, rounds: int) -> None:
    for lanes in _LANES:
        measured = _measure_rounds(engines, partial(_step_seconds, lanes=lanes), rounds)
        _add_rows(report, f"decode, {lanes} lanes", measured, _DECODE_GOALS)
    for tokens in _PROMPTS:
        measured = _measure_rounds(engines, partial(_prompt_seconds, tokens=tokens), rounds)
        _add_rows(report, f"prefill of {tokens:,} tokens", measured, _PREFILL_GOALS)


def _measure_rounds(engines: list[EngineProcess], measure: Callable[[EngineProcess], float], rounds: int) -> list[dict[str, float]]:
    """Seconds by engine in every round, after a round that is not counted."""
    return [{engine.name: measure(engine) for engine in engines} for _ in range(rounds + 1)][1:]


def _step_seconds(engine: EngineProcess, lanes: int) -> float:
    """Of a decode step: what the tokens after the first one take."""
    prefill = engine.seconds(lanes, _DECODE_PROMPT, 1)
    return (engine.seconds(lanes, _DECODE_PROMPT, 1 + _DECODE_TOKENS) - prefill) / _DECODE_TOKENS


def _prompt_seconds(engine: EngineProcess, tokens: int) -> float:
    return engine.seconds(1, tokens, 1)


def _add_rows(report: Report, work: str, rounds: list[dict[str, float]], goals: Mapping[str, float]) -> None:
    for peer in rounds[0].keys() - {"own"}:
        ratio = statistics.median(seconds[peer] / seconds["own"] for seconds in rounds)
        figures = " / ".join(f"{statistics.median(seconds[name] for seconds in rounds) * 1e3:.1f}" for name in ("own", peer))
        report.add(Row(work, peer, f"{figures} ms", ratio, goals[peer]))


def _compare_with_machine(own: EngineProcess, report: Report, rounds: int) -> None:
    rates = MachineRates()
    shares = [_BYTES_PER_TOKEN / _step_seconds(own, 1) / rates.bytes_per_second() for _ in range(rounds)]
    report.add(Row("decode, 1 lane", "memory rate", f"{rates.bytes_per_second() / 1e9:.1f} GB/s", statistics.median(shares), 0.7))
    for tokens in _PROMPTS:
        shares = [_prefill_operations(tokens) / own.seconds(1, tokens, 1) / rates.operations_per_second() for _ in range(rounds)]
        figures = f"{rates.operations_per_second() / 1e9:.0f} Gop/s"
        report.add(Row(f"prefill of {tokens:,} tokens", "bf16 product rate", figures, statistics.median(shares), 0.7))


def _prefill_operations(tokens: int) -> float:
    """Multiplications and additions: linears of all rows, attention over what each row sees, the head for the last row."""
    attention = 2 * 2 * 28 * 16 * 128 * tokens * (tokens + 1) / 2
    return 2 * 28 * _LAYER_WEIGHTS * tokens + attention + 2 * _HEAD_WEIGHTS


def _compare_int8(own: EngineProcess, int8: EngineProcess, report: Report, rounds: int) -> None:
    measured = [(_step_seconds(own, 1), _step_seconds(int8, 1)) for _ in range(rounds + 1)][1:]
    figures = " / ".join(f"{statistics.median(seconds) * 1e3:.1f}" for seconds in zip(*measured, strict=True))
    report.add(Row("int8 decode, 1 lane", "own bf16", f"{figures} ms", statistics.median(bf16 / int8 for bf16, int8 in measured), 1.6))


def _watch_worker(model: Path, report: Report) -> None:
    """How soon a worker serves, and what it takes after 1,000 prompts of random length."""
    budget = 2 * (28 * _LAYER_WEIGHTS + _HEAD_WEIGHTS) + _KV_PAGES * _PAGE_BYTES
    with TwoProcesses(model, ["--num-pages", str(_KV_PAGES)]) as processes:
        report.add(start_row(processes, _MAX_START_SECONDS))
        for prompts in (500, 1000):
            processes.load_random_lengths(500, 128)
            resident = processes.worker_resident_bytes()
            figures = f"{resident / 1e6:.0f} of {1.15 * budget / 1e6 + 300:.0f} MB"
            report.add(
                Row(
                    f"worker's memory after {prompts:,} prompts",
                    "1.15 x (weights + KV) + 300 MB",
                    figures,
                    resident / (1.15 * budget + 300e6),
                    1.0,
                    at_most=True,
                )
            )


if __name__ == "__main__":
    sys.exit(main())
