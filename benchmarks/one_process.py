"""The same scheduler, engine and executor in one process: what serving costs without planes that are apart."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.local_worker import LocalWorker, load_local_runner
from control_plane.core.sampling import SamplingParams
from control_plane.core.scheduler import Scheduler
from control_plane.edge.model_directory import read_model
from control_plane.engine.engine import Engine
from control_plane.engine.ports import ChoiceSpec, GenerationRequest, Outputs
from control_plane.engine.stats import PassObservation
from worker.loaded_runner import LoadedRunner


class OneProcess:
    """An engine and a runner on two threads of this process. Use it as a context manager."""

    def __init__(self, model: Path, worker_flags: Sequence[str] = ()) -> None:
        self._model = read_model(model, None, {}, None)
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._loaded: LoadedRunner = self._executor.submit(load_local_runner, model, worker_flags).result()

    @property
    def vocab_size(self) -> int:
        """Of the model."""
        return self._model.vocab_size

    def __enter__(self) -> "OneProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown()

    def generate(self, prompts: Sequence[list[int]], max_tokens: int) -> None:
        """Generate `max_tokens` greedy tokens after each of the prompts, which begin together."""
        asyncio.run(self._generate(prompts, max_tokens))

    async def _generate(self, prompts: Sequence[list[int]], max_tokens: int) -> None:
        front_end = _CountingFrontEnd(len(prompts))
        engine = Engine(Scheduler(), _NoMetrics())
        worker = LocalWorker(self._loaded, self._executor, engine)
        engine.worker_joined(worker)
        running = asyncio.create_task(engine.run())
        for index, prompt in enumerate(prompts):
            engine.submit(_request(index, prompt, max_tokens), front_end)
        await front_end.all_finished.wait()
        engine.stop()
        await running
        worker.reset()


def _request(index: int, prompt: Sequence[int], max_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"request-{index}",
        resume_key=b"",
        prompt_token_ids=prompt,
        choices=(ChoiceSpec(0, index, SamplingParams()),),
        max_tokens=max_tokens,
        min_tokens=0,
        end_token_ids=frozenset(),
        arrival_time=time.monotonic(),
    )


class _CountingFrontEnd:
    """Waits for the end of all sequences."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.all_finished = asyncio.Event()

    def publish(self, outputs: Outputs) -> None:
        assert not outputs.failed, outputs.failed
        self._count -= len(outputs.finished)
        if self._count == 0:
            self.all_finished.set()


class _NoMetrics:
    """Drops what the engine observes."""

    def observe(self, observed: PassObservation) -> None:
        pass
