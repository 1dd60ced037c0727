"""In fp32 an accelerator draws what the CPU draws."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness.accelerator_runs import KIND, PAGE, PAGES_PER_LANE, Accelerator, Run, assert_same_but_for_ties, request

from worker.decode_graphs import GraphShape
from worker.models import LoadOptions, load_model
from worker.step import LaneSampling

_LANES = {"tiny": range(9), "0.6B": range(3)}


@pytest.mark.skipif(KIND == "npu", reason="the PyPTO kernels take bfloat16 only")
@pytest.mark.parametrize("size", ["tiny", "0.6B"])
def test_greedy_tokens_are_those_of_the_cpu(accelerator: Accelerator, checkpoint: Callable[[str, str], Path], size: str) -> None:
    directory = checkpoint(size, "float32")
    requests = [request(lane, sampling=LaneSampling()) for lane in _LANES[size]]
    on_host = load_model(directory, LoadOptions(torch.float32, torch.device("cpu"), PAGE, PAGE * PAGES_PER_LANE))
    expected = Run(on_host, len(requests))(requests)
    model = accelerator.load(directory, "float32")
    run = Run(model, len(requests), accelerator, (GraphShape(16, PAGE * PAGES_PER_LANE),))
    assert_same_but_for_ties(run(requests), expected)
