"""Holding a request whose client is slow."""

from collections.abc import Callable

import pytest

from control_plane.core.sampling import SamplingParams
from control_plane.edge.config import StreamOptions
from control_plane.edge.service.backlog import Backlog, UnwrittenTotal, token_bytes


def ignore() -> None:
    """Nobody is told."""


def make_backlog(
    options: StreamOptions | None,
    hold: Callable[[], None] = ignore,
    unhold: Callable[[], None] = ignore,
    num_bytes: int = 4,
    total: UnwrittenTotal | None = None,
) -> Backlog:
    return Backlog(options, num_bytes, total or UnwrittenTotal(), hold, unhold)


def test_above_the_bound_it_holds_once_and_below_half_of_it_it_lets_go() -> None:
    calls: list[str] = []
    backlog = make_backlog(StreamOptions(max_unwritten_tokens=10), lambda: calls.append("hold"), lambda: calls.append("unhold"))
    backlog.set(10)
    assert calls == []
    backlog.set(11)
    backlog.set(16)
    assert calls == ["hold"]
    backlog.set(5)
    assert (calls, backlog.is_held) == (["hold"], True)
    backlog.set(4)
    assert (calls, backlog.is_held) == (["hold", "unhold"], False)
    backlog.set(11)
    assert calls == ["hold", "unhold", "hold"]


def test_without_a_bound_nothing_is_held() -> None:
    backlog = make_backlog(None, pytest.fail, pytest.fail)
    backlog.set(1 << 30)
    backlog.set(0)
    assert backlog.num_tokens == 0


def test_alternatives_count_for_the_memory_that_they_take() -> None:
    backlog = make_backlog(StreamOptions(), num_bytes=token_bytes(SamplingParams(logprobs=True, top_logprobs=20), has_stops=False))
    num_tokens = 0
    while not backlog.is_held:
        num_tokens += 1
        backlog.set(num_tokens)
    assert 400 < num_tokens < 500  # a megabyte
    backlog.set(num_tokens // 2 + 1)
    assert backlog.is_held
    backlog.set(num_tokens // 2 - 1)
    assert not backlog.is_held


def test_when_the_process_is_short_of_memory_every_stream_is_held_early() -> None:
    total, limits = UnwrittenTotal(), StreamOptions(max_unwritten_bytes=1600, max_unwritten_total_bytes=10_000)
    answer = make_backlog(None, pytest.fail, pytest.fail, 100, total)  # a unary call, which is never held
    answer.set(50)
    backlog = make_backlog(limits, num_bytes=1, total=total)
    backlog.set(99)
    assert not backlog.is_held
    backlog.set(101)
    assert backlog.is_held
    answer.set(0)
    backlog.set(49)
    assert (backlog.is_held, total.num_bytes) == (False, 49)


def test_what_nobody_will_write_takes_no_memory() -> None:
    total = UnwrittenTotal()
    backlog = make_backlog(StreamOptions(), num_bytes=200, total=total)
    backlog.set(5)
    backlog.close()
    backlog.set(10)  # comes in while the engine is told
    backlog.close()
    assert total.num_bytes == 0
