"""Both sides of the worker protocol against each other, with a real model, in one process."""

import asyncio
import itertools
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fakes.network.tcp_proxy import TcpProxy
from harness.checkpoints import TinyCheckpoint
from harness.linked_engine import LinkedEngine
from harness.served_worker import ServedWorker
from harness.waiting import until

from control_plane.core.sampling import SamplingParams
from control_plane.edge.worker_link.options import Backoff
from control_plane.engine.ports import Failure
from worker.runner import ModelRunner, PendingStep
from worker.step import Step

pytestmark = pytest.mark.slow

StartWorker = Callable[..., Awaitable[ServedWorker]]

_PROMPTS = {f"r{number}": [7 * number + offset for offset in range(3 + 4 * number)] for number in range(4)}
_NUM_TOKENS = 60


@pytest.fixture
async def cleanup() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def start_worker(tiny_checkpoint: TinyCheckpoint, cleanup: AsyncExitStack) -> StartWorker:
    model: Path = tiny_checkpoint("llama")
    numbers = itertools.count(1)

    async def start(*flags: str) -> ServedWorker:
        worker = ServedWorker(model, "--num-pages", "100", *flags)
        await worker.start(f"worker-{next(numbers)}")
        cleanup.push_async_callback(worker.stop)
        return worker

    return start


def _engine(*addresses: str, worker: ServedWorker, name: str = "ours", **links: object) -> LinkedEngine:
    patience = {"min_hang_seconds": 1.0, "max_hang_seconds": 1.0}
    return LinkedEngine(*addresses, links={"control_plane_id": name, "model_fingerprint": worker.fingerprint, **patience, **links})


def _submit_all(engine: LinkedEngine, prefix: str = "") -> None:
    for seed, (name, prompt) in enumerate(_PROMPTS.items()):
        sampling = SamplingParams(temperature=0.9 * (seed % 2), seed=seed)
        engine.submit(prefix + name, prompt, max_tokens=_NUM_TOKENS, sampling=sampling)


async def _all_tokens(engine: LinkedEngine, prefix: str = "") -> list[list[int]]:
    return [await engine.tokens(prefix + name) for name in _PROMPTS]


async def _begun(engine: LinkedEngine) -> None:
    """Wait until every request has some of its tokens."""
    await until(lambda: all(len(engine.front_end.output_of(name)) >= 5 for name in _PROMPTS))


class _EveryThird:
    """Allows every third token, others at every place, and none at all after `most` of them."""

    is_ready = True

    def __init__(self, most: int = 1000) -> None:
        self._num_pushed = 0
        self._most = most

    def push(self, token_id: int) -> None:
        assert token_id % 3 == self._num_pushed % 3
        self._num_pushed += 1

    def mask(self) -> bytes:
        allowed = range(self._num_pushed % 3, 1024, 3) if self._num_pushed < self._most else ()
        return sum(1 << token_id for token_id in allowed).to_bytes(128, "little")


async def _undisturbed(engine: LinkedEngine) -> list[list[int]]:
    prefix = f"undisturbed {len(engine.front_end.finished)} "
    _submit_all(engine, prefix)
    return await _all_tokens(engine, prefix)


async def test_a_link_that_is_cut_again_and_again_costs_nothing(start_worker: StartWorker, cleanup: AsyncExitStack) -> None:
    worker = await start_worker()
    proxy = TcpProxy(worker.address)
    await proxy.start()
    cleanup.push_async_callback(proxy.stop)
    async with _engine(proxy.address, worker=worker, max_unproven_streams=100) as engine:
        solo = await _undisturbed(engine)
        _submit_all(engine)
        for _ in range(8):
            await asyncio.sleep(0.02)
            proxy.cut()
        assert await _all_tokens(engine) == solo
        await engine.assert_comes_to_rest()
        assert engine.link_metrics.num_resumed >= 4
        assert engine.scheduler.counters.worker_losses == 0


async def test_a_standby_takes_no_worker_whose_owner_is_back_in_a_moment(start_worker: StartWorker, cleanup: AsyncExitStack) -> None:
    worker = await start_worker()
    proxy = TcpProxy(worker.address)
    await proxy.start()
    cleanup.push_async_callback(proxy.stop)
    async with AsyncExitStack() as engines:
        owner = await engines.enter_async_context(_engine(proxy.address, worker=worker, name="owner", max_unproven_streams=100))
        solo = await _undisturbed(owner)
        standby = await engines.enter_async_context(_engine(worker.address, worker=worker, name="standby", refused=Backoff(0.02, 0.05)))
        _submit_all(owner)
        for _ in range(8):
            await asyncio.sleep(0.02)
            proxy.cut()
        assert await _all_tokens(owner) == solo
        assert (owner.scheduler.counters.worker_losses, standby.num_workers) == (0, 0)
        assert owner.link_metrics.num_resumed >= 4
        assert await _undisturbed(owner) == solo  # and is connected
        await owner.registry.stop()  # which says farewell
        left_at = asyncio.get_running_loop().time()
        await until(lambda: standby.num_workers == 1)
        assert asyncio.get_running_loop().time() - left_at < 2  # half a lease is five


async def test_a_draining_worker_hands_its_sequences_on_and_is_idle(start_worker: StartWorker) -> None:
    leaving, staying = await start_worker(), await start_worker()
    async with _engine(leaving.address, staying.address, worker=leaving) as engine:
        await until(lambda: engine.num_workers == 2)
        solo = await _undisturbed(engine)
        _submit_all(engine)
        await _begun(engine)
        leaving.servicer.drain()
        await until(lambda: leaving.servicer.is_idle)
        assert not all(engine.has_ended(name) for name in _PROMPTS)
        assert await _all_tokens(engine) == solo
        _submit_all(engine, "later ")
        assert await _all_tokens(engine, "later ") == solo
        assert leaving.servicer.is_idle
        await engine.assert_comes_to_rest()


async def test_the_last_worker_finishes_its_sequences_while_it_drains(start_worker: StartWorker) -> None:
    worker = await start_worker()
    async with _engine(worker.address, worker=worker) as engine:
        solo = await _undisturbed(engine)
        _submit_all(engine)
        await _begun(engine)
        worker.servicer.drain()
        assert await _all_tokens(engine) == solo
        await until(lambda: worker.servicer.is_idle)


async def test_a_second_control_plane_is_refused_until_the_first_is_gone(start_worker: StartWorker) -> None:
    worker = await start_worker()
    async with AsyncExitStack() as holding:
        first = await holding.enter_async_context(_engine(worker.address, worker=worker, name="first"))
        solo = await _undisturbed(first)
        async with _engine(worker.address, worker=worker, name="second") as second:
            _submit_all(second)
            await until(lambda: "held by control plane first" in second.registry.states()[0].trouble)
            assert await _undisturbed(first) == solo
            assert (first.num_workers, second.num_workers) == (1, 0)
            await holding.aclose()
            assert await _all_tokens(second) == solo


async def test_after_two_to_the_32_admissions_tokens_are_the_same(start_worker: StartWorker) -> None:
    worker = await start_worker()
    async with _engine(worker.address, worker=worker) as engine:
        solo = await _undisturbed(engine)
        engine.scheduler._generations = itertools.count(2**32 - 2)
        assert await _undisturbed(engine) == solo
        await engine.assert_comes_to_rest()
        assert engine.link_metrics.num_resets == 0


async def test_a_worker_with_a_damaged_file_is_refused(
    start_worker: StartWorker, tiny_checkpoint: TinyCheckpoint, tmp_path: Path, cleanup: AsyncExitStack
) -> None:
    sound = await start_worker()
    shutil.copytree(tiny_checkpoint("llama"), tmp_path / "model")
    weights = bytearray((tmp_path / "model" / "model.safetensors").read_bytes())
    weights[-300] ^= 1
    (tmp_path / "model" / "model.safetensors").write_bytes(weights)
    damaged = ServedWorker(tmp_path / "model", "--num-pages", "100")
    assert damaged.fingerprint == sound.fingerprint
    await damaged.start("damaged")
    cleanup.push_async_callback(damaged.stop)
    async with _engine(sound.address, worker=sound) as engine:
        await until(lambda: engine.num_workers == 1)
        await asyncio.sleep(0.5)  # a progress frame tells
        engine.registry.announce(damaged.address, "damaged")
        await until(lambda: "weights_digest is" in engine.registry.states()[1].trouble)
        assert engine.num_workers == 1


async def test_a_takeover_costs_the_first_control_plane_nothing_but_time(start_worker: StartWorker) -> None:
    worker = await start_worker()
    async with _engine(worker.address, worker=worker, name="first") as first:
        solo = await _undisturbed(first)
        _submit_all(first)
        await _begun(first)
        async with _engine(worker.address, worker=worker, name="second", takeover=True) as second:
            assert await _undisturbed(second) == solo
            assert first.num_workers == 0
        assert await _all_tokens(first) == solo
        await first.assert_comes_to_rest()


async def test_wrk_06_a_successor_of_a_killed_control_plane_continues(start_worker: StartWorker) -> None:
    worker = await start_worker("--lease-seconds", "0.3")
    async with _engine(worker.address, worker=worker, name="first") as first:
        solo = await _undisturbed(first)
        _submit_all(first)
        await _begun(first)
    await until(lambda: worker.metrics.registry.get_sample_value("pypto_serving_worker_lanes") == 0)
    async with _engine(worker.address, worker=worker, name="second") as second:
        for seed, (name, prompt) in enumerate(_PROMPTS.items()):
            sampling = SamplingParams(temperature=0.9 * (seed % 2), seed=seed)
            second.submit(name, prompt, max_tokens=_NUM_TOKENS, sampling=sampling, resumed=tuple(first.front_end.output_of(name)))
        continued = await _all_tokens(second)
    assert [first.front_end.output_of(name) + rest for name, rest in zip(_PROMPTS, continued, strict=True)] == solo


async def test_wrk_02_a_step_that_never_returns_is_left_behind(start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, other = await start_worker(), await start_worker()
    async with _engine(stuck.address, other.address, worker=stuck) as engine:
        await until(lambda: engine.num_workers == 2)
        solo = await _undisturbed(engine)
        gate = threading.Event()
        launch = ModelRunner.launch

        def hang(runner: ModelRunner, step: Step) -> PendingStep:
            if threading.current_thread() is stuck.device._thread:
                gate.wait(30)
            return launch(runner, step)

        monkeypatch.setattr(ModelRunner, "launch", hang)
        _submit_all(engine)
        assert await _all_tokens(engine) == solo
        assert engine.num_workers == 1
        gate.set()
        await until(lambda: engine.num_workers == 2)
        _submit_all(engine, "later ")
        assert await _all_tokens(engine, "later ") == solo
        await engine.assert_comes_to_rest()


@pytest.mark.parametrize("jump_seconds", [3600.0, -3600.0])
async def test_ops_07_a_jump_of_the_wall_clock_is_not_noticed(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch, jump_seconds: float
) -> None:
    worker = await start_worker("--lease-seconds", "1")
    async with _engine(worker.address, worker=worker) as engine:
        solo = await _undisturbed(engine)
        _submit_all(engine)
        await _begun(engine)
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + jump_seconds)
        assert await _all_tokens(engine) == solo
        await asyncio.sleep(0.6)  # beats and looks at the lease
        assert engine.scheduler.counters.worker_losses == 0
        assert all(0.0 <= engine.front_end.finished[name, 0].total_seconds < 60.0 for name in _PROMPTS)


async def test_constrained_lanes_draw_what_their_masks_allow_beside_free_ones(start_worker: StartWorker) -> None:
    worker = await start_worker()
    async with _engine(worker.address, worker=worker) as engine:
        solo = await _undisturbed(engine)
        for name, prompt in _PROMPTS.items():
            engine.submit(f"bound {name}", prompt, max_tokens=9, constraint=_EveryThird())
        _submit_all(engine)
        for tokens in await _all_tokens(engine, "bound "):
            assert [token_id % 3 for token_id in tokens] == [0, 1, 2] * 3
        assert await _all_tokens(engine) == solo
        await engine.assert_comes_to_rest()


async def test_a_request_whose_constraint_leaves_nothing_is_to_blame_itself(start_worker: StartWorker) -> None:
    worker = await start_worker()
    async with _engine(worker.address, worker=worker) as engine:
        engine.submit("dead end", [5, 6, 7], max_tokens=9, constraint=_EveryThird(most=4))
        await until(lambda: engine.has_ended("dead end"))
        assert engine.front_end.failed["dead end"].failure is Failure.INVALID_ARGUMENT
        assert len(engine.front_end.output_of("dead end")) == 4
        await engine.assert_comes_to_rest()
