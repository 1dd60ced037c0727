"""A worker that computes nothing, behind the real service and the real link."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.checkpoints import TinyCheckpoint, make_checkpoint
from harness.linked_engine import LinkedEngine
from harness.served_worker import ServedWorker

from control_plane.core.sampling import SamplingParams
from pypto_serving.process.start_up import StartUpError
from worker.config import read_config
from worker.loaded_runner import load_runner
from worker.progress import ProgressCounter

_PROMPTS = {f"r{number}": list(range(number, 4 * number + 4)) for number in range(8)}


@asynccontextmanager
async def _linked(model: Path, *flags: str) -> AsyncIterator[LinkedEngine]:
    worker = ServedWorker(model, "--device", "null", *flags)
    await worker.start()
    try:
        async with LinkedEngine(worker.address, links={"model_fingerprint": worker.fingerprint}) as engine:
            yield engine
            await engine.assert_comes_to_rest()
            assert (engine.link_metrics.num_mismatches, engine.link_metrics.num_resets) == (0, 0)
    finally:
        await worker.stop()


async def _generate(engine: LinkedEngine, num_tokens: int = 40) -> list[list[int]]:
    for seed, (name, prompt) in enumerate(_PROMPTS.items()):
        engine.submit(name, prompt, max_tokens=num_tokens, sampling=SamplingParams(seed=seed), end_token_ids=frozenset(range(300)))
    return [await engine.tokens(name) for name in _PROMPTS]


@pytest.mark.parametrize("flags", [(), ("--step-ms", "1", "--token-us", "10")])
async def test_streams_get_all_their_tokens(tiny_checkpoint: TinyCheckpoint, flags: tuple[str, ...]) -> None:
    async with _linked(tiny_checkpoint("llama"), "--num-pages", "200", "--max-lanes", "3", *flags) as engine:
        tokens = await _generate(engine)
        assert [len(of_one) for of_one in tokens] == [40] * len(_PROMPTS)
        assert engine.scheduler.counters.preemptions == 0


async def test_preemption_in_few_pages_changes_no_token(tiny_checkpoint: TinyCheckpoint) -> None:
    model = tiny_checkpoint("llama")
    async with _linked(model, "--num-pages", "200") as engine:
        undisturbed = await _generate(engine)
    async with _linked(model, "--num-pages", "24", "--step-ms", "1") as engine:
        assert await _generate(engine) == undisturbed
        assert engine.scheduler.counters.preemptions > 0


def test_it_says_once_that_it_computes_nothing(tiny_checkpoint: TinyCheckpoint, caplog: pytest.LogCaptureFixture) -> None:
    flags = ("--device", "null", "--max-model-len", "64", "--page-tokens", "8", "--max-lanes", "5")
    with caplog.at_level(logging.WARNING):
        loaded = load_runner(read_config(["--model", str(tiny_checkpoint("llama")), *flags]), ProgressCounter())
    assert (loaded.numerics_id, loaded.limits.max_model_len, loaded.limits.max_lanes) == ("null", 64, 5)
    assert [(group.page_tokens, group.num_pages) for group in loaded.cache_groups] == [(8, 40)]
    assert [record.message for record in caplog.records if "computes nothing" in record.message] == [
        "--device null computes nothing: its tokens are made up, to measure control planes"
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [(("--num-pages", "9999999"), "lower it"), ((), "vocab_size is missing"), (("--max-lanes", "7"), "no memory for 7 lanes")],
)
def test_what_it_cannot_hold_is_refused_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], message: str
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    model = make_checkpoint(tmp_path, "llama")
    if not flags:
        (model / "config.json").write_text('{"max_position_embeddings": 64}')
    if "--max-lanes" in flags:
        monkeypatch.setattr("worker.loaded_runner.NullRunner", fail)
    with pytest.raises(StartUpError, match=message) as caught:
        load_runner(read_config(["--model", str(model), "--device", "null", *flags]), ProgressCounter())
    assert "\n" not in str(caught.value)


def test_it_takes_no_length_that_the_model_does_not_have(tiny_checkpoint: TinyCheckpoint) -> None:
    config = read_config(["--model", str(tiny_checkpoint("llama")), "--device", "null", "--max-model-len", "1000000"])
    with pytest.raises(StartUpError, match=r"^--max-model-len 1000000: .*config.json allows \d+: lower it, or leave it out$"):
        load_runner(config, ProgressCounter())
