"""Whatever becomes of the schedulers, every request ends exactly once, with the tokens that it has without any trouble."""

import asyncio
import itertools
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from fakes.control_plane.front_end_calls import Call, make_request
from fakes.control_plane.session_engine import NUMERICS_ID, expected_tokens
from harness.linked_front_end import LinkedFrontEnd
from harness.served_scheduler import ServedScheduler
from harness.waiting import until
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.core.sampling import SamplingParams
from control_plane.engine.ports import Failure, FinishReason

pytestmark = pytest.mark.slow

_ACTIONS = (
    *("submit", "submit", "submit", "step", "step", "step", "step", "breathe", "breathe"),
    *("finish", "hold", "unhold", "end", "abort"),
    *("kill", "lose last frames", "leave", "stand by", "take over", "refuse new", "answer late", "settle"),
)


class _Rig:
    """Two schedulers, of which at most one serves, and a front end. Randomness comes from a seed: what is possible depends on timing."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = Random(seed)
        self.schedulers = [ServedScheduler(directory / name) for name in ("a", "b")]
        self.front_end = LinkedFrontEnd([scheduler.address for scheduler in self.schedulers], max_losses=10**9)
        self.calls: list[Call] = []
        self.stopped: dict[int, int] = {}  # choices with a stop string: how many tokens they had when it was found
        self.ended: dict[str, Failure] = {}  # requests that their calls ended
        self.held: set[str] = set()
        self.aborts: list[asyncio.Task[bool]] = []
        self._names = itertools.count()

    @property
    def serving(self) -> ServedScheduler | None:
        return next((scheduler for scheduler in self.schedulers if scheduler.runs), None)

    @property
    def live(self) -> list[Call]:
        return [call for call in self.calls if not call.has_ended]

    async def act(self, action: str) -> None:
        await getattr(self, "_" + action.replace(" ", "_"))()

    async def finish(self) -> None:
        """Let everything come to its end, and judge it."""
        for request_id in self.held:
            self.front_end.link.unhold(request_id)
        await self._take_over()
        while self.live:
            self._step_engine()
            await asyncio.sleep(0.001)
        await asyncio.gather(*self.aborts)
        await self.front_end.close()
        for scheduler in self.schedulers:
            await scheduler.kill()
        for call in self.calls:
            self._judge(call)

    def _judge(self, call: Call) -> None:
        request = call.request
        assert call.num_accepted == 1 or (call.failed and call.num_accepted == 0)
        if call.failed:
            refusals = {Failure.QUEUE_FULL, Failure.UNAVAILABLE} if not call.num_accepted else set()
            assert call.failed.failure in {self.ended.get(request.request_id), *refusals}
        for choice in request.choices:
            tokens, expected = call.tokens[choice.number], expected_tokens(request, choice.index)
            assert tokens == expected[: len(tokens)]
            assert call.numerics[choice.number] in ([NUMERICS_ID], []) and bool(tokens) <= bool(call.numerics[choice.number])
            assert [entry.token_id for entry in call.logprobs[choice.number]] == tokens
            if choice.number in call.finished:
                self._judge_end(call, choice.number, expected)
        assert len(call.prompt_logprobs) == bool(call.numerics[request.choices[0].number])

    def _judge_end(self, call: Call, number: int, expected: list[int]) -> None:
        finished, tokens, request = call.finished[number], call.tokens[number], call.request
        if tokens == expected and (finished.end_token_id is not None or finished.reason is FinishReason.LENGTH):
            is_stop = expected[-1] in request.end_token_ids and len(expected) > request.min_tokens
            assert finished.reason is (FinishReason.STOP if is_stop else FinishReason.LENGTH)
        else:
            assert finished.reason is FinishReason.STOP and len(tokens) >= self.stopped[number]
        assert finished.num_generated_tokens == len(tokens)

    # What calls do

    async def _submit(self) -> None:
        name, num_choices = f"r{next(self._names)}", self.random.randint(1, 3)
        plain = make_request(name, num_choices, max_tokens=8)
        ends = self.random.sample([token_id for choice in range(num_choices) for token_id in expected_tokens(plain, choice)], 1)
        sampling = SamplingParams(logprobs=True, top_logprobs=1, prompt_logprobs=0)
        request = make_request(
            name,
            num_choices,
            max_tokens=self.random.randint(1, 8),
            min_tokens=self.random.choice([0, 0, 3]),
            end_token_ids=frozenset(ends if self.random.random() < 0.5 else ()),
            sampling=sampling,
        )
        self.calls.append(self.front_end.submit(request))

    async def _finish(self) -> None:
        begun = [(call, number) for call in self.live for number, tokens in call.tokens.items() if tokens and number not in call.finished]
        if begun:
            call, number = self.random.choice(begun)
            self.stopped.setdefault(number, len(call.tokens[number]))
            self.front_end.link.finish(number)

    async def _hold(self) -> None:
        for call in self._some_live():
            self.held.add(call.request.request_id)
            self.front_end.link.hold(call.request.request_id)

    async def _unhold(self) -> None:
        for call in self._some_live():
            self.held.discard(call.request.request_id)
            self.front_end.link.unhold(call.request.request_id)

    async def _end(self) -> None:
        for call in self._some_live():
            failure = self.ended.setdefault(call.request.request_id, self.random.choice([Failure.CANCELLED, Failure.DEADLINE_EXCEEDED]))
            self.front_end.link.end(call.request.request_id, failure, "its call has ended")

    async def _abort(self) -> None:
        for call in self._some_live():
            self.ended.setdefault(call.request.request_id, Failure.CANCELLED)
            self.aborts.append(asyncio.create_task(self.front_end.link.abort(call.request.request_id)))

    def _some_live(self) -> list[Call]:
        return self.random.sample(self.live, 1) if self.live else []

    # What becomes of schedulers

    async def _step(self) -> None:
        self._step_engine()
        await asyncio.sleep(0)

    async def _breathe(self) -> None:
        await asyncio.sleep(self.random.choice([0.0, 0.001, 0.005]))

    async def _kill(self) -> None:
        if self.serving:
            await self.serving.kill()

    async def _lose_last_frames(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self._step_engine()
        await self._kill()

    async def _leave(self) -> None:
        if self.serving:
            await self.serving.leave()

    async def _stand_by(self) -> None:
        if not self.serving:
            await self.random.choice(self.schedulers).start(stands_by=True)

    async def _take_over(self) -> None:
        """Somebody serves, if nobody did; and takes new requests."""
        await self._kill()
        await self.random.choice(self.schedulers).start()

    async def _refuse_new(self) -> None:
        if self.serving:
            self.serving.engine.refuses_new = not self.serving.engine.refuses_new

    async def _answer_late(self) -> None:
        if self.serving:
            self.serving.engine.withholds_acceptance = True

    async def _settle(self) -> None:
        """Let the scheduler, if one serves, get everything that it is to have."""
        serving = self.serving
        if serving and serving.service.front_ends:
            submitted = {call.request.request_id for call in self.live}
            await until(lambda: submitted <= {request.request_id for request in serving.engine.submitted} or not serving.service.front_ends)

    def _step_engine(self) -> None:
        if self.serving:
            chance = self.random.random()
            self.serving.engine.step(lambda request_id: self.random.random() < 0.5 + chance)


async def _run(seed: int, actions: list[str]) -> None:
    with TemporaryDirectory() as directory:
        rig = _Rig(Path(directory), seed)
        for action in actions:
            await rig.act(action)
        await asyncio.wait_for(rig.finish(), 60)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(_ACTIONS), min_size=5, max_size=60))
def test_nothing_is_lost_and_nothing_comes_twice(seed, actions):
    asyncio.run(_run(seed, actions))
