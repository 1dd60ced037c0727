"""Holding a request whose client is slow."""

import pytest

from control_plane.core.step import TokenLogprob
from control_plane.edge.config import StreamOptions
from control_plane.edge.service.request_stream import Backlog, UnwrittenTotal, memory_bytes
from control_plane.engine.ports import SequenceDelta


def test_above_the_bound_it_holds_once_and_below_half_of_it_it_lets_go() -> None:
    calls: list[str] = []
    backlog = Backlog(StreamOptions(max_unwritten_tokens=10), lambda: calls.append("hold"), lambda: calls.append("unhold"))
    backlog.add(10)
    assert calls == []
    backlog.add(1)
    backlog.add(5)
    assert calls == ["hold"]
    backlog.remove(11)
    assert (calls, backlog.is_held) == (["hold"], True)
    backlog.remove(1)
    assert (calls, backlog.is_held) == (["hold", "unhold"], False)
    backlog.add(7)
    assert calls == ["hold", "unhold", "hold"]


def test_without_a_bound_nothing_is_held() -> None:
    backlog = Backlog(None, pytest.fail, pytest.fail)
    backlog.add(1 << 30)
    backlog.remove(1 << 30)
    assert backlog.num_tokens == 0


def ignore() -> None:
    """Nobody is told."""


def test_alternatives_count_for_the_memory_that_they_take() -> None:
    def delta(num_alternatives: int) -> SequenceDelta:
        return SequenceDelta("r", 0, 0, (1,), "a", (TokenLogprob(1, -0.5, tuple((index, -1.0) for index in range(num_alternatives))),))

    backlog = Backlog(StreamOptions(), ignore, ignore)
    num_tokens = 0
    while not backlog.is_held:
        backlog.add(1, memory_bytes(delta(20)))
        num_tokens += 1
    assert 400 < num_tokens < 500  # a megabyte
    backlog.remove(num_tokens // 2 - 1)
    assert backlog.is_held
    backlog.remove(2)
    assert not backlog.is_held


def test_when_the_process_is_short_of_memory_every_stream_is_held_early() -> None:
    total, limits = UnwrittenTotal(), StreamOptions(max_unwritten_bytes=1600, max_unwritten_total_bytes=10_000)
    answer = Backlog(None, pytest.fail, pytest.fail, total)  # a unary call, which is never held
    answer.add(1, 5000)
    backlog = Backlog(limits, ignore, ignore, total)
    backlog.add(1, 99)
    assert not backlog.is_held
    backlog.add(1, 2)
    assert backlog.is_held
    answer.remove(1)
    backlog.remove(1)
    assert (backlog.is_held, total.num_bytes) == (False, 51)


def test_what_nobody_will_write_takes_no_memory() -> None:
    total = UnwrittenTotal()
    backlog = Backlog(StreamOptions(), ignore, ignore, total)
    backlog.add(5, 1000)
    backlog.close()
    backlog.add(5, 1000)  # comes in while the engine is told
    backlog.close()
    assert total.num_bytes == 0
