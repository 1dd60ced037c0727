"""Constraints whose work is done on threads."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest
from fakes.control_plane.engine_doubles import make_choice, received_request
from fakes.control_plane.subset_constraint import SubsetConstraint

from control_plane.core.constraint import Constraint, ConstraintExhausted, ConstraintViolated
from control_plane.edge.text.constraint import mask_threads
from control_plane.edge.text.constraint.mask_threads import MaskThreads


class WatchedConstraint(SubsetConstraint):
    """Notes on which threads it works; `is_ready` says whether the first mask is known."""

    def __init__(self, before_mask: Callable[[], object] = lambda: None, **changes: int) -> None:
        super().__init__(**changes)
        self.is_ready = False
        self.threads: list[str] = []
        self._before_mask = before_mask

    def push(self, token_id: int) -> None:
        self.threads.append(threading.current_thread().name)
        super().push(token_id)

    def mask(self) -> bytes:
        self.threads.append(threading.current_thread().name)
        self._before_mask()
        return super().mask()


class Pool:
    """Threads, and who waits for them."""

    def __init__(self) -> None:
        self._ready: queue.Queue[None] = queue.Queue()
        self.threads = MaskThreads(lambda: self._ready.put(None))

    def attach(self, *constraints: Constraint) -> list[Constraint]:
        choices = [make_choice(index, constraint=constraint) for index, constraint in enumerate(constraints)]
        return [choice.constraint for choice in self.threads.attach(received_request(choices=choices)).choices]

    def next_mask(self, constraint: Constraint) -> bytes:
        while not constraint.is_ready:
            self._ready.get(timeout=60)
        return constraint.mask()


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.threads.close()


def allowed(mask: bytes) -> int:
    return next(token for token in range(97) if mask[token // 8] >> token % 8 & 1)


def test_masks_are_those_of_the_constraint_and_nothing_is_computed_by_who_asks(pool: Pool) -> None:
    watched, alone = WatchedConstraint(), SubsetConstraint()
    (threaded,) = pool.attach(watched)
    for _ in range(20):
        assert pool.next_mask(threaded) == alone.mask()
        token = allowed(alone.mask())
        threaded.push(token)
        assert threading.current_thread().name not in watched.threads
        alone.push(token)
    pool.next_mask(threaded)
    assert watched.token_ids == alone.token_ids
    assert {name.partition("_")[0] for name in watched.threads} == {"mask"}


def test_a_first_mask_that_is_known_is_not_computed_again(pool: Pool) -> None:
    known = SubsetConstraint()
    (threaded,) = pool.attach(known)
    assert threaded.is_ready and threaded.mask() == known.mask()


def test_what_goes_wrong_on_a_thread_is_told_by_the_mask(pool: Pool) -> None:
    exhausted, broken, wrong = pool.attach(WatchedConstraint(exhausted_at=0), WatchedConstraint(broken_at=0), WatchedConstraint())
    with pytest.raises(ConstraintExhausted):
        pool.next_mask(exhausted)
    with pytest.raises(RuntimeError, match="no mask"):
        pool.next_mask(broken)
    mask = pool.next_mask(wrong)
    wrong.push(next(token for token in range(97) if not mask[token // 8] >> token % 8 & 1))
    with pytest.raises(ConstraintViolated):
        pool.next_mask(wrong)


def test_a_slow_constraint_leaves_the_threads_of_fast_ones(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_threads, "_SLOW_SECONDS", -1.0)
    slow, sibling = WatchedConstraint(), WatchedConstraint()
    for threaded in (taken := pool.attach(slow, sibling)):
        pool.next_mask(threaded)
    go_on = threading.Event()
    slow._before_mask = sibling._before_mask = go_on.wait
    for threaded, constraint in zip(taken, (slow, sibling), strict=True):
        threaded.push(allowed(SubsetConstraint.mask(constraint)))
    (fast,) = pool.attach(WatchedConstraint())
    pool.next_mask(fast)  # although both choices of the slow one keep a thread each busy
    assert not any(threaded.is_ready for threaded in taken)
    go_on.set()
    for threaded, constraint in zip(taken, (slow, sibling), strict=True):
        pool.next_mask(threaded)
        assert constraint.threads[-1].startswith("slow-mask")
