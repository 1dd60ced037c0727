"""A model on the interpreted PyPTO kernels: run in a process of its own by tests/kernels/pypto/test_whole_model.py."""

from pathlib import Path

import numpy as np
import torch
from fakes.device.steps import generate, ids, worker_admission
from torch import Tensor

from kernels.testing.npu_role import interpreted_kernels, npu_layout
from worker.batch import Hidden
from worker.models import LoadOptions, load_model
from worker.runner import ModelRunner
from worker.step import RunnerLimits

Drawn = tuple[dict[int, list[int]], list[list[float]], list[str]]
_PAGE = 128
_PAGES = 5  # of a sequence: one more than a key tile has


class _Recorder:
    """A runner's model that keeps its logits."""

    def __init__(self, model):
        self._model, self.seen = model, []

    def forward(self, batch, cache) -> Hidden:
        return self._model.forward(batch, cache)

    def logits(self, rows: Tensor) -> Tensor:
        self.seen.append(self._model.logits(rows))
        return self.seen[-1]


def draw(directory: str, lengths: list[int], num_generated: int, interpreted: bool) -> Drawn:
    """Greedy tokens of sequences in one batch, the logits of every step, and the names of the kernels that were launched."""
    with interpreted_kernels() if interpreted else npu_layout() as names:
        model = load_model(Path(directory), LoadOptions(torch.bfloat16, torch.device("cpu"), _PAGE, _PAGES * _PAGE))
        recorder = _Recorder(model)
        cache = model.allocate_cache([_PAGES * len(lengths)])
        runner = ModelRunner(recorder, cache, RunnerLimits(model.description.vocab_size, _PAGES * _PAGE, len(lengths), _PAGES * _PAGE))
        tokens = generate(runner, [_request(lane, length, num_generated) for lane, length in enumerate(lengths)])
    return tokens, [logits.flatten().tolist() for logits in recorder.seen], sorted(set(names or ()))


def _request(lane: int, length: int, num_generated: int):
    prompt = np.random.default_rng([lane, length]).integers(10, 1000, length).tolist()
    pages = [ids(*range(_PAGES * lane, _PAGES * (lane + 1)))]
    return worker_admission(lane, prompt, final_length=length + num_generated, page_tables=pages)
