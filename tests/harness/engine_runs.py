"""The real engine, scheduler and runner in one process, driven by hand, with a record of the logits that tokens were drawn from."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from fakes.control_plane.engine_doubles import Bench
from fakes.device.stream import LateCopies, StreamModel, off_device
from torch import Tensor

from benchmarks.local_worker import LocalWorker
from control_plane.core.sampling import SamplingParams
from control_plane.core.step import Step
from control_plane.engine.ports import SequenceFinished
from pypto_serving.worker.v1 import worker_pb2
from worker.loaded_runner import LoadedRunner
from worker.models import Model
from worker.runner import ModelRunner
from worker.sampling.sampler import SampledTokens, sample
from worker.sampling.sampling_rows import SamplingRows
from worker.service.frames import decode_step
from worker.step import RunnerLimits

_MAX_MODEL_LEN, _MAX_LANES, _MAX_STEP_TOKENS = 256, 32, 512

Hook = Callable[["RealBench", int], None]


@dataclass(frozen=True)
class Ask:
    """A request. Its seed is its name, so no two have the same, greedy ones included."""

    seed: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Mapping[str, Any] = field(default_factory=dict)
    end_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    priority: int = 0
    cache_salt: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a request."""

    token_ids: list[int]  # all that were generated, resumed ones included
    logits: dict[int, Tensor]  # index of a token in the sequence -> what it was drawn from
    finished: SequenceFinished
    num_resumed: int = 0

    def assert_equals(self, solo: "Outcome") -> None:
        """Assert the same tokens, each of them that was not resumed drawn from the same logits, bit for bit."""
        assert self.token_ids == solo.token_ids
        first, end = self.finished.num_prompt_tokens + self.num_resumed, self.finished.num_prompt_tokens + len(self.token_ids)
        assert self.logits.keys() == set(range(first, end))
        differing = [index for index, row in self.logits.items() if not same_bits(row, solo.logits[index])]
        assert not differing, f"logits differ at {differing}, the prompt has {self.finished.num_prompt_tokens} tokens"


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether float32 tensors are equal bit for bit: -0 is not 0, and NaN is NaN."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


class LogitsRecorder:
    """Stands before the runner's sampler and keeps what it sees; what it sees twice has to be the same."""

    def __init__(self) -> None:
        self.logits: dict[int, dict[int, Tensor]] = {}  # seed -> index -> row

    def sample(self, logits: Tensor, rows: SamplingRows) -> SampledTokens:
        for row, seed, index in zip(off_device(logits), rows.columns.seed.tolist(), rows.indices.tolist(), strict=True):
            first = self.logits.setdefault(seed, {}).setdefault(index, row.clone())
            assert same_bits(first, row), f"request {seed} draws token {index} again, from other logits"
        return sample(logits, rows)


class _Jobs:
    """Stands in for the thread of a worker."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def submit(self, call: Callable[..., None], *arguments: Any) -> None:
        self.waiting.append((call, arguments))

    def run_next(self) -> None:
        if self.waiting:
            call, arguments = self.waiting.popleft()
            call(*arguments)


class HandWorker(LocalWorker):
    """A worker with a real runner that executes when it is told to."""

    broken_rules = ()  # the runner refuses a step that breaks a rule

    def __init__(self, loaded: LoadedRunner, events: Any, name: str, junk: float | None = None) -> None:
        self.jobs = _Jobs()
        self.history: list[Step] = []
        self.max_in_flight = 0
        runner: Any = loaded.runner
        self._groups, self._cache, self._junk = runner._model.cache_groups, runner._cache, junk
        super().__init__(loaded, self.jobs, events, name)  # type: ignore[arg-type]

    def submit(self, step: Step) -> None:
        super().submit(step)
        self.history.append(step)
        self.max_in_flight = max(self.max_in_flight, len(self.jobs.waiting))

    def compute(self, step: Step, frame: worker_pb2.Step, num_resets: int) -> None:
        if self._junk is not None:
            self.spoil(step)
        super().compute(step, frame, num_resets)

    def spoil(self, step: Step) -> None:
        """Fill the pages that the step hands out, and the scratch pages, with junk."""
        for index, group in enumerate(self._groups):
            pages = [-1, *(page for page, of in zip(step.grown_pages, step.grown_groups, strict=True) if of == index)]
            for admission in step.admissions:
                pages += admission.page_tables[index][admission.num_computed_tokens // group.page_tokens :]
            for tensors in (self._cache.keys, self._cache.values):
                for layer in group.layers:
                    tensors[layer][pages] = self._junk

    def run_next(self) -> None:
        """One step from beginning to end."""
        self.jobs.run_next()

    @property
    def is_busy(self) -> bool:
        return bool(self.jobs.waiting)

    def reset(self, blame: str = "") -> None:
        self.jobs.waiting.clear()
        super().reset()

    def lose(self) -> None:
        self._events.worker_lost(self, "gone")

    @property
    def num_admissions(self) -> int:
        """Sequences that it was given, some of them more than once."""
        return sum(len(step.admissions) for step in self.history)

    @property
    def chunk_sizes(self) -> set[int]:
        """Sizes of the chunks of all steps."""
        return {num_tokens for step in self.history for num_tokens in step.chunk_tokens}


class StreamWorker(HandWorker):
    """A HandWorker whose device has its own stream: it collects a step when the next one is launched, or when there is none."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pending: deque[tuple[Step, Any, int]] = deque()

    def run_next(self) -> None:
        if not self.jobs.waiting and self._pending:
            self._collect()
        self.jobs.run_next()

    @property
    def is_busy(self) -> bool:
        return super().is_busy or bool(self._pending)

    def reset(self, blame: str = "") -> None:
        self._pending.clear()
        super().reset()

    def compute(self, step: Step, frame: worker_pb2.Step, num_resets: int) -> None:
        if self._junk is not None:
            self.spoil(step)
        self._pending.append((step, self._runner.launch(decode_step(frame, self._limits)), num_resets))
        if len(self._pending) == 2:
            self._collect()

    def _collect(self) -> None:
        step, pending, num_resets = self._pending.popleft()
        self.deliver(step, self._runner.collect(pending), num_resets)


class RealBench(Bench):
    """An engine with one worker on each of `models`, `num_pages` pages in each cache group; to be made inside an event loop.

    Pages hold what somebody left there; with `junk` every page holds nothing else whenever it is handed out. With `streams` devices have
    their own stream.
    """

    def __init__(
        self, *models: Model, num_pages: int = 192, junk: float | None = None, streams: bool = False, **scheduler_options: Any
    ) -> None:
        self.recorder, self.junk, self.streams = LogitsRecorder(), junk, streams
        self.num_pages, self.num_groups = num_pages, len(models[0].cache_groups)
        super().__init__(*(load_on(model, num_pages, streams) for model in models), **scheduler_options)

    def join(self, description: LoadedRunner) -> HandWorker:  # type: ignore[override]
        kind = StreamWorker if self.streams else HandWorker
        worker = kind(description, self.engine, f"worker-{len(self.workers)}", self.junk)
        self.engine.worker_joined(worker)
        self.workers.append(worker)
        return worker

    async def generate(
        self, asks: Sequence[Ask], resumed: Mapping[int, Sequence[int]] | None = None, hook: Hook | None = None, stride: int = 0
    ) -> dict[int, Outcome]:
        """Run `asks` to their ends and return what became of them, by seed; see `run_to_end`."""
        resumed = resumed or {}
        await self.run_to_end(asks, resumed, hook, stride)
        return {ask.seed: self._outcome(ask, resumed.get(ask.seed, ())) for ask in asks}

    async def run_to_end(
        self, asks: Sequence[Ask], resumed: Mapping[int, Sequence[int]] | None = None, hook: Hook | None = None, stride: int = 0
    ) -> None:
        """Run `asks` until nothing is left to do; `resumed` holds tokens, also by seed.

        One ask comes in every `stride` rounds of one step per worker. `hook` is called with the number of each round, before it.
        """
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("worker.runner.sample", self.recorder.sample)
            num_rounds = num_sent = 0
            self.turn()
            while num_sent < len(asks) or self._is_busy():
                while num_sent < len(asks) and num_rounds >= stride * num_sent:
                    self.send(asks[num_sent], (resumed or {}).get(asks[num_sent].seed, ()))
                    num_sent += 1
                self.turn()
                if hook is not None:
                    hook(self, num_rounds)
                await self._round()
                num_rounds += 1
        self._assert_nothing_is_held()

    def send(self, ask: Ask, resumed: Sequence[int] = ()) -> None:
        """Submit a request."""
        names = ("max_tokens", "end_token_ids", "min_tokens", "priority", "cache_salt")
        changes = {name: getattr(ask, name) for name in names}
        sampling = SamplingParams(seed=ask.seed, **ask.sampling)
        self.submit(str(ask.seed), ask.prompt, sampling=sampling, resumed=tuple(resumed), **changes)

    def is_running(self, seed: int) -> bool:
        """Whether a request holds a lane."""
        states = self.engine.state(with_sequences=True).sequences
        return any(state.worker for state in states if state.request_id == str(seed))

    async def _round(self) -> None:
        """One step on every worker."""
        for worker in self.workers:
            worker.run_next()
        await asyncio.sleep(0)  # the results arrive
        self.turn()

    def _is_busy(self) -> bool:
        return any(worker.is_busy for worker in self.workers)

    def _assert_nothing_is_held(self) -> None:
        self.assert_at_rest()
        for worker in self.engine.state().snapshot.workers:
            assert worker.pages.free + worker.pages.cached == self.num_pages * self.num_groups

    def _outcome(self, ask: Ask, resumed: Sequence[int]) -> Outcome:
        name = str(ask.seed)
        assert name not in self.front_end.failed, self.front_end.failed[name]
        tokens = [*resumed, *self.front_end.output_of(name)]
        finished, logits = self.front_end.finished[name, 0], self.recorder.logits[ask.seed]
        if self.streams:  # a lane that has ended may have run once more before anybody knew
            logits.pop(finished.num_prompt_tokens + len(tokens), None)
        return Outcome(tokens, logits, finished, len(resumed))


class Crowd:
    """A hook that sends short requests that go first whenever one request has got a lane: with few pages it loses its own."""

    def __init__(self, seed: int, num_times: int) -> None:
        self._seed, self._num_left = seed, num_times
        self._ran = False

    def __call__(self, bench: RealBench, round: int) -> None:
        runs = bench.is_running(self._seed)
        if runs and not self._ran and self._num_left:
            self._num_left -= 1
            for index in range(4):
                bench.send(Ask(1000 + 10 * self._num_left + index, (index,) * 9, 16, priority=-1))
        self._ran = runs


def load_on(model: Model, num_pages: int, streams: bool = False) -> LoadedRunner:
    """A runner whose pages hold what somebody left there; with `streams` on a device with its own stream."""
    cache = model.allocate_cache([num_pages] * len(model.cache_groups))
    for index, tensor in enumerate((*cache.keys, *cache.values)):
        tensor.normal_(std=30.0, generator=torch.Generator().manual_seed(index))
    limits = RunnerLimits(model.description.vocab_size, _MAX_MODEL_LEN, _MAX_LANES, _MAX_STEP_TOKENS)
    return LoadedRunner(
        runner=ModelRunner(StreamModel(model), cache, limits, copy_to_host=LateCopies()) if streams else ModelRunner(model, cache, limits),
        limits=limits,
        architecture=model.description.architecture,
        model_fingerprint="made-up",
        numerics_id=model.numerics_id,
        cache_groups=cache.groups,
        kv_cache_bytes=0,
    )
