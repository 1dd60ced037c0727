"""Prints what a decode step takes beside the time that reading weights and keys and values takes. Asserts nothing about time."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from fakes.device.steps import step
from harness.accelerator_runs import PAGE, PAGES_PER_LANE, Accelerator, Run, request

from worker.decode_graphs import GraphShape
from worker.step import LaneSampling

_NUM_STEPS = 8
_LENGTH = PAGE * PAGES_PER_LANE - _NUM_STEPS - 2


@pytest.mark.parametrize(("size", "rows"), [("tiny", 1), ("tiny", 8), ("0.6B", 1), ("0.6B", 8), ("0.6B", 64)])
def test_decode_step_against_the_floor_of_memory(
    accelerator: Accelerator, checkpoint: Callable[[str, str], Path], size: str, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = checkpoint(size, "bfloat16")
    model = accelerator.load(directory, "bfloat16")
    shape = GraphShape(rows + -rows % 8, PAGE * PAGES_PER_LANE)
    launched = _step_seconds(Run(model, rows, accelerator), accelerator, rows)
    replayed = _step_seconds(Run(model, rows, accelerator, (shape,)), accelerator, rows)
    ahead = _seconds_per_step_ahead(Run(model, rows, accelerator, (shape,), steps_in_flight=2), accelerator, rows)
    read_bytes = (directory / "model.safetensors").stat().st_size
    read_bytes += sum(spec.row_bytes * len(spec.layers) for spec in model.cache_groups) * rows * _LENGTH
    floor = read_bytes / _bytes_per_second(accelerator)
    with capsys.disabled() if accelerator.is_real else nullcontext():
        print(
            f"\n{size}, {rows} sequences of {_LENGTH} tokens: launched {launched * 1e3:.2f} ms a step, replayed {replayed * 1e3:.2f} ms, "
            f"two steps in flight {ahead * 1e3:.2f} ms, "
            f"floor {floor * 1e3:.2f} ms ({read_bytes / 1e6:.0f} MB)"
        )


def _step_seconds(run: Run, accelerator: Accelerator, rows: int) -> float:
    """Median time of a decode step of the runner, sampler and all; greedy."""
    admissions = [request(lane, length=_LENGTH, sampling=LaneSampling()) for lane in range(rows)]
    run.runner.reset()
    with accelerator.operators():
        run.runner.execute(step(1, dict.fromkeys(range(rows), _LENGTH), admissions=admissions))
        seconds = []
        for index in range(_NUM_STEPS - 1):
            begin = time.perf_counter()
            run.runner.execute(step(2 + index))
            accelerator.device.synchronize()
            seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[len(seconds) // 2]


def _seconds_per_step_ahead(run: Run, accelerator: Accelerator, rows: int) -> float:
    """Mean time of a decode step, each launched before the one before it is collected."""
    admissions = [request(lane, length=_LENGTH, sampling=LaneSampling()) for lane in range(rows)]
    run.runner.reset()
    with accelerator.operators():
        pending = run.runner.launch(step(1, dict.fromkeys(range(rows), _LENGTH), admissions=admissions))
        pending.wait()
        begin = time.perf_counter()
        for index in range(_NUM_STEPS - 1):
            launched = run.runner.launch(step(2 + index))
            run.runner.collect(pending)
            pending = launched
        run.runner.collect(pending)
    return (time.perf_counter() - begin) / (_NUM_STEPS - 1)


def _bytes_per_second(accelerator: Accelerator) -> float:
    """How fast the device copies, counting what is read and what is written."""
    num_bytes = 1 << (30 if accelerator.is_real else 24)
    source = torch.empty(num_bytes, dtype=torch.uint8, device=accelerator.device.torch_device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        accelerator.device.synchronize()
        begin = time.perf_counter()
        target.copy_(source)
        accelerator.device.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2 * num_bytes / best
