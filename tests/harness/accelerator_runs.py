"""Runs requests on an accelerator, with and without graphs, and keeps what was drawn and what it was drawn from."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fakes.device.accelerator_operators import accelerator_operators
from fakes.device.graphs import FakeCapture
from fakes.device.recording_model import RecordingModel
from fakes.device.steps import generate, ids, worker_admission
from fakes.device.stream import LateCopies, StreamModel
from torch import Tensor

from worker.batch import Hidden
from worker.decode_graphs import Capture, DecodeGraphs, GraphShape
from worker.device import Device, select_device
from worker.models import LoadOptions, Model, load_model
from worker.models.model import ForwardModel
from worker.npu_software import NpuKernels
from worker.runner import ModelRunner
from worker.step import LaneAdmission, LaneSampling, RunnerLimits
from worker.transfers import HostCopies, stay_on_host

#: cuda, npu, or cpu for one that plays CUDA.
KIND = os.environ.get("TEST_DEVICE", "cpu")
PAGE, PAGES_PER_LANE = (128 if KIND == "npu" else 16), 8
NUM_GENERATED = 8

Drawn = tuple[dict[int, list[int]], dict[int, list[Tensor]]]  # tokens, and the logits that each was drawn from, by lane


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The device under test."""

    device: Device

    @classmethod
    def find(cls) -> "Accelerator":
        """Raises DeviceUnavailable."""
        return cls(select_device(KIND, npu_kernels=NpuKernels.PYPTO))

    @property
    def is_real(self) -> bool:
        """Whether it is more than a CPU in its role."""
        return self.device.kind != "cpu"

    def operators(self) -> AbstractContextManager[None]:
        """Within it, models load and run as they do on the device."""
        return nullcontext() if self.is_real else accelerator_operators()

    def new_capture(self) -> Capture:
        """Captures graphs."""
        return self.device.new_capture() if self.is_real else FakeCapture()

    def copy_to_host(self, tensors: Sequence[Tensor]) -> HostCopies:
        """As the worker has it; late where a CPU plays the device."""
        return self.device.copy_to_host(tensors) if self.is_real else LateCopies()(tensors)

    def place(self, model: ForwardModel) -> ForwardModel:
        """The model, whose results the host cannot read by accident."""
        return model if self.is_real else StreamModel(model)

    def load(self, directory: Path, dtype: str) -> Model:
        """A model on the device."""
        with self.operators():
            return load_model(
                directory,
                LoadOptions(
                    getattr(torch, dtype),
                    self.device.torch_device,
                    PAGE,
                    PAGE * PAGES_PER_LANE,
                    npu_kernels=NpuKernels.PYPTO if KIND == "npu" else None,
                ),
            )


@dataclass
class Run:
    """A runner of a model over one cache, for one request set after the other."""

    model: Model
    num_lanes: int
    accelerator: Accelerator | None = None  # None: the host
    shapes: Sequence[GraphShape] = ()  # none: every kernel is launched by itself
    steps_in_flight: int = 1
    warms_up: bool = True
    num_replayed: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        limits = RunnerLimits(self.model.description.vocab_size, PAGE * PAGES_PER_LANE, self.num_lanes, 8192)
        self.cache = self.model.allocate_cache([self.num_lanes * PAGES_PER_LANE] * len(self.model.cache_groups))
        self._recorder = RecordingModel(self.model)
        placed: ForwardModel = self._recorder
        copy_to_host, graphs = stay_on_host, None
        if self.accelerator is not None:
            placed, copy_to_host = self.accelerator.place(self._recorder), self.accelerator.copy_to_host
            capture = self._counting(self.accelerator.new_capture())
            graphs = DecodeGraphs(placed.forward, self.cache, self.shapes, capture) if self.shapes else None
        self.runner = ModelRunner(placed, self.cache, limits, graphs, copy_to_host)
        with self.operators(), torch.inference_mode():
            if self.warms_up:
                self.runner.warm_up()
            elif graphs is not None:
                graphs.capture()

    def operators(self) -> AbstractContextManager[None]:
        """Within it, the runner may run."""
        return nullcontext() if self.accelerator is None else self.accelerator.operators()

    def __call__(self, requests: Sequence[LaneAdmission], chunk_tokens: int = 1000) -> Drawn:
        """Run to the end; the cache keeps what it holds, and nothing else is kept."""
        self.runner.reset()
        self._recorder.clear()
        with self.operators():
            tokens = generate(self.runner, requests, chunk_tokens, self._recorder.observe, self.steps_in_flight)
        return tokens, self._recorder.drawn_from

    def poison(self, pages: slice = slice(None)) -> None:
        """Fill pages with NaN, the scratch page, which is the last, among them unless others are named."""
        for tensor in (*self.cache.keys, *self.cache.values):
            tensor[pages] = torch.nan

    def _counting(self, capture: Capture) -> Capture:
        def capture_and_count(launch: Callable[[], Hidden]) -> Callable[[], Hidden]:
            replay = capture(launch)

            def replay_and_count() -> Hidden:
                self.num_replayed += 1
                return replay()

            return replay_and_count

        return capture_and_count


def request(lane: int, generated: Sequence[int] = (), length: int | None = None, num_groups: int = 1, **fields: Any) -> LaneAdmission:
    """A sequence with pages of its own; lanes of odd number draw at random. Lengths reach both sides of the edges of pages."""
    length = length or (*(PAGE * pages + more for pages in (1, 2, 3) for more in (-1, 0, 1)), 1, 2)[lane % 11]
    prompt = np.random.default_rng([lane, length]).integers(1, 1024, length).tolist()
    defaults = {
        "num_prompt_tokens": length,
        "final_length": length + NUM_GENERATED,
        "page_tables": [ids(*range(lane * PAGES_PER_LANE, (lane + 1) * PAGES_PER_LANE))] * num_groups,
        "sampling": LaneSampling(temperature=1.0, top_p=0.9, seed=lane) if lane % 2 else LaneSampling(),
    }
    return worker_admission(lane, [*prompt, *generated], **{**defaults, **fields})


def assert_same(ours: Drawn, theirs: Drawn, first: int = 0) -> None:
    """The lanes that both have drew the same tokens from the same logits, bit for bit; ours from index `first` on."""
    lanes = set(ours[0]) & set(theirs[0])
    assert lanes
    for lane in lanes:
        assert ours[0][lane] == theirs[0][lane], lane
        assert torch.equal(torch.stack(ours[1][lane]), torch.stack(theirs[1][lane][first:])), lane


def assert_same_but_for_ties(ours: Drawn, theirs: Drawn, relative: float = 1e-3) -> None:
    """Greedy tokens are equal up to the first that two logits closer than the tolerance were up for; logits are within it until then."""
    for lane, tokens in theirs[0].items():
        for index, (mine, other) in enumerate(zip(ours[1][lane], theirs[1][lane], strict=True)):
            tolerance = relative * float(other.abs().max())
            torch.testing.assert_close(mine, other, rtol=0, atol=tolerance)
            if ours[0][lane][index] != tokens[index]:
                best, second = other.topk(2).values.tolist()
                assert best - second < 2 * tolerance, (lane, index)
                break
