"""Random valid steps against a plain Python model of the lane rules."""

from dataclasses import dataclass, field

import numpy as np
from fakes.device.model import FakeModel, hashed_logits, limits, token_cache
from fakes.device.steps import drawn, ids, step, worker_admission
from harness.twin_runner import TwinRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from pypto_serving.wire.digest import StateDigest

_VOCAB, _PAGE, _WINDOW, _NUM_PAGES, _NUM_LANES, _MAX_LEN, _BUDGET = 13, 4, 6, 40, 5, 24, 16
_LOGITS = hashed_logits(_VOCAB)


@dataclass
class _Lane:
    generation: int
    token_ids: list[int]
    final_length: int
    min_length: int
    end_token_ids: tuple[int, ...]
    pages: list[list[int]]
    num_computed: int = 0
    ended: bool = False
    trims: list[int] = field(default_factory=list)
    lost_pages: list[int] = field(default_factory=list)

    def draw(self):
        logits = _LOGITS(self.token_ids)
        if len(self.token_ids) < self.min_length:
            logits[list(self.end_token_ids)] = -np.inf
        self.token_ids.append(int(logits.argmax()))
        self.ended = self.token_ids[-1] in self.end_token_ids or len(self.token_ids) == self.final_length
        return self.token_ids[-1]


class _Client:
    """Draws valid steps, and knows what must come out of them."""

    def __init__(self, draw):
        self._draw = draw
        self._free_pages = [set(range(_NUM_PAGES)), set(range(_NUM_PAGES))]
        self._generation = 0
        self.lanes = {}

    def next_step(self, step_id):
        released = [lane for lane in self.lanes if self._draw(st.integers(0, 5)) == 0]
        for lane in released:
            self._forget(lane)
        admissions = [self._admit(lane) for lane in range(_NUM_LANES) if lane not in self.lanes and self._draw(st.booleans())]
        trims = [(lane, state, self._gone(state)) for lane, state in self.lanes.items() if self._gone(state) > len(state.lost_pages)]
        for _, state, count in trims:
            self._trim(state, count)
        growths = self._grow()
        return step(
            step_id,
            self._choose_chunks(),
            released_lanes=released,
            admissions=admissions,
            trimmed_lanes=[lane for lane, _, _ in trims],
            trimmed_groups=[1] * len(trims),
            trimmed_entries=[count for _, _, count in trims],
            grown_lanes=[lane for lane, _, _ in growths],
            grown_groups=[group for _, group, _ in growths],
            grown_pages=[page for _, _, page in growths],
        )

    def _forget(self, lane):
        state = self.lanes.pop(lane)
        self._free_pages[0].update(state.pages[0])
        self._free_pages[1].update(state.pages[1][len(state.lost_pages) :])

    def _admit(self, lane):
        token_ids = self._draw(st.lists(st.integers(0, _VOCAB - 1), min_size=1, max_size=12))
        final_length = len(token_ids) + self._draw(st.integers(0, 6))
        num_pages = self._draw(st.integers(0, -(-len(token_ids) // _PAGE)))  # the others come by growth
        pages = [[free.pop() for _ in range(num_pages)] for free in self._free_pages]
        end_token_ids = tuple(self._draw(st.sets(st.integers(0, _VOCAB - 1), max_size=3)))
        self._generation += 1
        state = _Lane(self._generation, token_ids, final_length, len(token_ids) + self._draw(st.integers(0, 3)), end_token_ids, pages)
        self.lanes[lane] = state
        return worker_admission(
            lane,
            token_ids,
            generation=state.generation,
            final_length=final_length,
            min_length=state.min_length,
            end_token_ids=ids(*end_token_ids),
            page_tables=[ids(*table) for table in pages],
        )

    def _trim(self, state, count):
        lost = state.pages[1][len(state.lost_pages) : count]
        state.lost_pages += lost
        state.trims.append(count)
        self._free_pages[1].update(lost)

    def _gone(self, state):
        return max(0, state.num_computed - _WINDOW + 1) // _PAGE

    def _grow(self):
        growths = []
        for lane, state in self.lanes.items():
            for group, pages in enumerate(state.pages):
                while len(pages) * _PAGE < len(state.token_ids):
                    pages.append(self._free_pages[group].pop())
                    growths.append((lane, group, pages[-1]))
        return growths

    def _choose_chunks(self):
        chunks = {}
        budget = _BUDGET - sum(len(state.token_ids) - state.num_computed == 1 for state in self.lanes.values())
        for lane, state in self.lanes.items():
            pending = len(state.token_ids) - state.num_computed
            if pending > 1 or self._draw(st.integers(0, 3)) == 0:
                chunks[lane] = self._draw(st.integers(0, min(pending, budget)))
                budget -= chunks[lane]
        return chunks

    def run(self, chunks):
        """The tokens that must be drawn."""
        tokens = {}
        for lane, state in self.lanes.items():
            pending = len(state.token_ids) - state.num_computed
            count = 0 if state.ended else chunks.get(lane, int(pending == 1))
            state.num_computed += count
            if count and count == pending and len(state.token_ids) < state.final_length:
                tokens[lane] = state.draw()
        return tokens

    def digest(self):
        digest = StateDigest(_NUM_LANES, 2)
        for lane, state in self.lanes.items():
            digest.admit(lane, state.generation, ids(*state.token_ids), [ids(), ids()])
            for group, pages in enumerate(state.pages):
                digest.grow(ids(*[lane] * len(pages)), ids(*[group] * len(pages)), ids(*pages))
            digest.trim(ids(*[lane] * len(state.trims)), ids(*[1] * len(state.trims)), ids(*state.trims))
        return digest.value


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_runner_follows_the_lane_rules(data):
    client = _Client(data.draw)
    bounds = limits(_VOCAB, max_lanes=_NUM_LANES, max_model_len=_MAX_LEN, max_step_tokens=_BUDGET)
    runner = TwinRunner(FakeModel(_LOGITS), token_cache(_NUM_PAGES, _PAGE, (None, _WINDOW)), bounds)
    for step_id in range(1, data.draw(st.integers(2, 14))):
        work = client.next_step(step_id)
        output = runner.execute(work)
        assert drawn(output) == client.run(dict(zip(work.chunk_lanes.tolist(), work.chunk_tokens.tolist(), strict=True)))
        assert output.generations.tolist() == [client.lanes[lane].generation for lane in output.lanes.tolist()]
        assert output.digest == client.digest()
    runner.finish()
