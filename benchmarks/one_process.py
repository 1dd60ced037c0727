"""The same scheduler, engine and executor in one process: what serving costs without planes that are apart."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.local_worker import LocalWorker, load_local_runner
from control_plane.core.sampling import SamplingParams
from control_plane.core.scheduler import Scheduler
from control_plane.edge.model_directory import read_model
from control_plane.edge.text.text_stream import SequenceTextStream, TextRules
from control_plane.engine.engine import Engine
from control_plane.engine.metrics_port import PassObservation
from control_plane.engine.ports import ChoiceSpec, GenerationRequest, Output, RequestFailed, SequenceFinished
from worker.loaded_runner import LoadedRunner


class OneProcess:
    """An engine and a runner on two threads of this process. Use it as a context manager."""

    def __init__(self, model: Path) -> None:
        self._model = read_model(model, None, {}, None)
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._loaded: LoadedRunner = self._executor.submit(load_local_runner, model).result()

    def __enter__(self) -> "OneProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown()

    def tokens_per_second(self, streams: int, prompt_tokens: int, max_tokens: int) -> float:
        """Generated tokens per second of `streams` greedy sequences of fixed lengths that begin together, prefill included."""
        draw = np.random.default_rng(time.time_ns())  # other prompts each time: none of them is cached
        prompts = draw.integers(0, self._model.vocab_size, (streams, prompt_tokens)).tolist()
        return asyncio.run(self._measure(prompts, max_tokens))

    async def _measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
        sink = _CountingSink(len(prompts))
        engine = Engine(Scheduler(), sink, _NoMetrics())
        worker = LocalWorker(self._loaded, self._executor, engine)
        engine.worker_joined(worker)
        running = asyncio.create_task(engine.run())
        begun = time.perf_counter()
        for index, prompt in enumerate(prompts):
            engine.submit(self._request(f"request-{index}", prompt, max_tokens))
        await sink.all_finished.wait()
        seconds = time.perf_counter() - begun
        engine.stop()
        await running
        worker.reset()
        return len(prompts) * max_tokens / seconds

    def _request(self, request_id: str, prompt: Sequence[int], max_tokens: int) -> GenerationRequest:
        detokenizer = self._model.tokenizer.detokenizer(prompt, True)
        return GenerationRequest(
            request_id=request_id,
            resume_key=b"",
            prompt_token_ids=prompt,
            choices=(ChoiceSpec(0, SamplingParams(), SequenceTextStream(detokenizer, TextRules())),),
            max_tokens=max_tokens,
            min_tokens=0,
            end_token_ids=frozenset(),
            arrival_time=time.monotonic(),
        )


class _CountingSink:
    """Waits for the end of all sequences."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.all_finished = asyncio.Event()

    def publish(self, outputs: Sequence[Output]) -> None:
        assert not any(isinstance(output, RequestFailed) for output in outputs), outputs
        self._count -= sum(isinstance(output, SequenceFinished) for output in outputs)
        if self._count == 0:
            self.all_finished.set()


class _NoMetrics:
    """Nobody looks."""

    def observe(self, observed: PassObservation) -> None:
        """See EngineMetrics."""
