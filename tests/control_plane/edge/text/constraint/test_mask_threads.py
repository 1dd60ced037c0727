"""Constraints whose work is done on threads."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from fakes.control_plane.subset_constraint import SubsetConstraint
from fakes.worker.strict_worker import solo

from control_plane.core.constraint import Constraint, ConstraintExhausted, ConstraintViolated
from control_plane.edge.text.constraint import mask_threads
from control_plane.edge.text.constraint.grammar import GrammarRefused
from control_plane.edge.text.constraint.mask_threads import MaskThreads


class WatchedConstraint(SubsetConstraint):
    """Notes on which threads it works."""

    def __init__(self, before_mask: Callable[[], object] = lambda: None, **changes: int) -> None:
        super().__init__(**changes)
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
        self._compiled: dict[str, Sequence[Constraint] | BaseException] = {}
        self.threads = MaskThreads(self._compile, lambda: self._ready.put(None))

    def _compile(self, grammar: str, count: int) -> Sequence[Constraint]:
        compiled = self._compiled[grammar]
        if isinstance(compiled, BaseException):
            raise compiled
        assert len(compiled) == count
        return compiled

    def begin(self, *constraints: Constraint, generated: Sequence[int] = ()) -> Sequence[Constraint]:
        """Constraints that threads compute for these, which have taken some tokens."""
        name = f"grammar {len(self._compiled)}"
        self._compiled[name] = constraints
        return self.threads.begin(name, [generated] * len(constraints))

    def begin_broken(self, error: BaseException) -> Constraint:
        """One whose grammar cannot be compiled."""
        self._compiled["broken"] = error
        return self.threads.begin("broken", [()])[0]

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
    (threaded,) = pool.begin(watched)
    for _ in range(20):
        assert pool.next_mask(threaded) == alone.mask()
        token = allowed(alone.mask())
        threaded.push(token)
        assert threading.current_thread().name not in watched.threads
        alone.push(token)
    pool.next_mask(threaded)
    assert watched.token_ids == alone.token_ids
    assert {name.partition("_")[0] for name in watched.threads} == {"begin-mask", "mask"}


def test_tokens_generated_before_are_pushed_on_a_thread_in_turns_with_others(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_threads, "_SLICE_SECONDS", 0.0)
    tokens = solo((1, 2, 3), 50, constraint=SubsetConstraint())
    watched = [WatchedConstraint(), WatchedConstraint()]
    for threaded in pool.begin(*watched, generated=tokens):
        alone = SubsetConstraint()
        for token in tokens:
            alone.push(token)
        assert pool.next_mask(threaded) == alone.mask()
    assert [constraint.token_ids for constraint in watched] == [tokens, tokens]
    assert {name.partition("_")[0] for constraint in watched for name in constraint.threads} == {"begin-mask"}


def test_a_request_that_has_ended_is_not_caught_up_with(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_threads, "_SLICE_SECONDS", 0.0)
    tokens, go_on = solo((1, 2, 3), 50, constraint=SubsetConstraint()), threading.Event()
    forgotten = WatchedConstraint()
    monkeypatch.setattr(forgotten, "push", lambda token_id: (go_on.wait(), SubsetConstraint.push(forgotten, token_id)))
    pool.begin(forgotten, generated=tokens)
    go_on.set()
    (other,) = pool.begin(WatchedConstraint(), generated=tokens)
    pool.next_mask(other)
    assert len(forgotten.token_ids) < 5


def test_what_goes_wrong_on_a_thread_is_told_by_the_mask(pool: Pool) -> None:
    exhausted, broken, wrong = pool.begin(WatchedConstraint(exhausted_at=0), WatchedConstraint(broken_at=0), WatchedConstraint())
    with pytest.raises(ConstraintExhausted):
        pool.next_mask(exhausted)
    with pytest.raises(RuntimeError, match="no mask"):
        pool.next_mask(broken)
    with pytest.raises(GrammarRefused, match="no such rule"):
        pool.next_mask(pool.begin_broken(GrammarRefused("no such rule")))
    (misfit,) = pool.begin(WatchedConstraint(empty_at=1), generated=solo((1, 2, 3), 2, constraint=SubsetConstraint()))
    with pytest.raises(ConstraintViolated):
        pool.next_mask(misfit)
    mask = pool.next_mask(wrong)
    wrong.push(next(token for token in range(97) if not mask[token // 8] >> token % 8 & 1))
    with pytest.raises(ConstraintViolated):
        pool.next_mask(wrong)


class Panic(BaseException):
    """As a library written in Rust raises it."""


def test_a_panic_on_a_thread_fails_its_request_only(pool: Pool) -> None:
    def panic() -> None:
        raise Panic("index out of bounds")

    panicking, well = pool.begin(WatchedConstraint(panic), WatchedConstraint())
    with pytest.raises(RuntimeError, match="index out of bounds"):
        pool.next_mask(panicking)
    assert pool.next_mask(well) == WatchedConstraint().mask()
    with pytest.raises(RuntimeError, match="Panic"):
        pool.next_mask(pool.begin_broken(Panic()))


def test_a_slow_constraint_leaves_the_threads_of_fast_ones(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_threads, "_SLOW_SECONDS", -1.0)
    slow, sibling = WatchedConstraint(), WatchedConstraint()
    for threaded in (taken := pool.begin(slow, sibling)):
        pool.next_mask(threaded)
    go_on = threading.Event()
    slow._before_mask = sibling._before_mask = go_on.wait
    for threaded, constraint in zip(taken, (slow, sibling), strict=True):
        threaded.push(allowed(SubsetConstraint.mask(constraint)))
    (fast,) = pool.begin(WatchedConstraint())
    pool.next_mask(fast)  # although both choices of the slow one keep a thread each busy
    assert not any(threaded.is_ready for threaded in taken)
    go_on.set()
    for threaded, constraint in zip(taken, (slow, sibling), strict=True):
        pool.next_mask(threaded)
        assert constraint.threads[-1].startswith("slow-mask")
