"""Prices the PyPTO kernels by PyPTO's cost model, and compares with the committed baseline.

Run with `python -m benchmarks.bench_kernels`. Prints one line of JSON per case and exits with 1 when a case takes over 2 % more cycles than
the baseline, or is not in it; `--update` writes the baseline instead. Cycles are "pypto 0.2.0 910B cost-model cycles, not time": they rank
kernels and do not say how long an NPU takes. The floors are what the assumed figures of an Ascend 910B allow; the model knows no limit
of all cores together on memory, so that large matrices come out below theirs. Last come the layers of decode steps, as sums of these.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.kernel_cases import QWEN3_0_6B, QWEN3_14B, KernelCase, all_cases
from kernels.testing.isolation import run_isolated

LABEL = "pypto 0.2.0 910B cost-model cycles, not time"
BASELINE = Path(__file__).with_name("kernel_baseline.json")
ALLOWED_GROWTH = 0.02
# Nominal figures of an Ascend 910B, assumed and never measured here.
CYCLES_PER_SECOND, BYTES_PER_SECOND, OPERATIONS_PER_SECOND = 1.85e9, 1.6e12, 350e12

# Of a decode step. A price holds the launch of its kernel; a call of torch is taken for a launch that computes nothing.
LAYER = ("qkv", "qk-rope-kv-write", "decode-attention", "output", "add-rms-norm", "gate-up", "swiglu", "down", "add-rms-norm")
TORCH_CALLS = 1  # of a layer: tests/kernels/pypto/test_launches.py counts them
LAUNCH_CYCLES = 14_000
DECODE_STEPS = {"8": "8-of-1024", "32": "32-of-512"}  # lanes, and the lengths of their sequences

Row = dict[str, Any]


def price_case(name: str) -> int:
    """Cycles of a case, in a process of its own."""
    from kernels.testing.cost_model import priced

    (case,) = (case for case in all_cases() if case.name == name)
    module, _, function = case.operator.partition(":")
    with priced() as cycles:
        getattr(import_module(f"kernels.pypto.{module}"), function)(*case.arguments())
    return sum(cycles)


def measure(case: KernelCase) -> Row:
    """Cycles of a case beside its floors."""
    cycles = run_isolated(f"{__name__}:price_case", case.name)
    bytes_floor = round(case.num_bytes / BYTES_PER_SECOND * CYCLES_PER_SECOND)
    operations_floor = round(case.num_operations / OPERATIONS_PER_SECOND * CYCLES_PER_SECOND)
    floors = {"bytes_floor": bytes_floor, "operations_floor": operations_floor}
    return {"case": case.name, "cycles": cycles, **floors, "times_floor": round(cycles / max(bytes_floor, operations_floor), 2)}


def judge(row: Row, baseline: dict[str, int]) -> str:
    """What is wrong with a row, or what has become better; empty when nothing changed."""
    before = baseline.get(row["case"])
    if before is None:
        return "WORSE: not in the baseline"
    change = row["cycles"] / before - 1
    if change > ALLOWED_GROWTH:
        return f"WORSE: {before:,} -> {row['cycles']:,} cycles, {change:+.1%}"
    return f"better: {before:,} -> {row['cycles']:,} cycles, {change:+.1%}; --update keeps it" if change < 0 else ""


def decode_layers(cycles: dict[str, int]) -> list[Row]:
    """Cycles of the layers of a decode step of each model, by the prices of their kernels."""
    steps = []
    for model in (QWEN3_0_6B, QWEN3_14B):
        for lanes, lengths in DECODE_STEPS.items():
            names = (f"{kernel}/{model.name}/{lengths if kernel == 'decode-attention' else lanes}" for kernel in LAYER)
            layer = sum(cycles[name] for name in names) + TORCH_CALLS * LAUNCH_CYCLES
            steps.append({"decode_step": f"{model.name}/{lengths}", "layers": model.layers, "cycles": model.layers * layer})
    return steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Price, print, compare; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--update", action="store_true", help="write the baseline")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args(arguments)
    cases = [case for case in all_cases() if options.only in case.name]
    print(json.dumps({"label": LABEL, "bytes_per_second": BYTES_PER_SECOND, "operations_per_second": OPERATIONS_PER_SECOND}))
    baseline = {row["case"]: row["cycles"] for row in json.loads(BASELINE.read_text())["rows"]} if BASELINE.exists() else {}
    rows, worse = [], 0
    with ThreadPoolExecutor(2) as pool:
        for row in pool.map(measure, cases):
            rows.append(row)
            verdict = "" if options.update else judge(row, baseline)
            worse += verdict.startswith("WORSE")
            print(json.dumps(row), verdict, flush=True)
    if options.update:
        _write(rows, keep_others=bool(options.only))
    if not options.only:
        for step in decode_layers({row["case"]: row["cycles"] for row in rows}):
            print(json.dumps(step))
    return 1 if worse else 0


def _write(rows: list[Row], keep_others: bool) -> None:
    measured = {row["case"]: row for row in rows}
    kept = json.loads(BASELINE.read_text())["rows"] if keep_others and BASELINE.exists() else []
    merged = {row["case"]: row for row in kept} | measured
    lines = ",\n".join(f"  {json.dumps(merged[name])}" for name in sorted(merged))
    BASELINE.write_text(f'{{"label": {json.dumps(LABEL)}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    sys.exit(main())
