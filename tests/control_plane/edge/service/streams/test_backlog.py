"""Holding a request whose client is slow."""

import pytest

from control_plane.edge.service.streams.backlog import Backlog


def test_above_the_bound_it_holds_once_and_below_half_of_it_it_lets_go() -> None:
    calls: list[str] = []
    backlog = Backlog(10, lambda: calls.append("hold"), lambda: calls.append("unhold"))
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
