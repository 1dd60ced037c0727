import json
from pathlib import Path

import pytest

from control_plane.edge.lease.file_store import FileLeaseStore
from control_plane.edge.lease.keeper import LeaseUnreachable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lease"


def test_the_file_says_who_holds_the_lease_and_when_it_was_renewed(path: Path) -> None:
    written = FileLeaseStore(path, 5.0).write("me", 5.0, None)
    content = json.loads(path.read_text())
    assert (content["holder"], content["lease_seconds"], content["renewed"][:2]) == ("me", 5.0, "20")
    assert FileLeaseStore(path, 5.0).read() == written
    assert sorted(each.name for each in path.parent.iterdir()) == ["lease", "lease.lock"]


def test_what_somebody_else_has_written_meanwhile_is_not_replaced(path: Path) -> None:
    ours, theirs = FileLeaseStore(path, 5.0), FileLeaseStore(path, 5.0)
    seen = ours.read()
    assert theirs.write("they", 5.0, None)
    assert ours.write("we", 5.0, seen) is None
    assert ours.write("we", 5.0, ours.read()) == theirs.read()


def test_a_lock_keeps_others_out_and_is_broken_when_it_lasts_longer_than_a_lease(path: Path) -> None:
    clock = Clock()
    frozen, waiting = FileLeaseStore(path, 5.0, clock), FileLeaseStore(path, 5.0, clock)
    with frozen._lock() as is_ours:
        assert is_ours and waiting.write("we", 5.0, None) is None
        clock.now = 4.9
        assert waiting.write("we", 5.0, None) is None
        clock.now = 5.0
        assert waiting.write("we", 5.0, None) is None  # breaks it
        assert waiting.write("we", 5.0, None)
    with frozen._lock() as is_ours:
        assert is_ours


def test_another_lock_has_its_own_time(path: Path) -> None:
    clock = Clock()
    first, second, waiting = (FileLeaseStore(path, 5.0, clock) for _ in range(3))
    with first._lock():
        assert waiting.write("we", 5.0, None) is None
        (path.parent / "lease.lock").unlink()
        with second._lock() as is_ours:
            clock.now = 5.0
            assert is_ours and waiting.write("we", 5.0, None) is None
            assert waiting.write("we", 5.0, None) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"holder": "a"}', "\0"])
def test_a_file_that_is_no_lease_is_left_alone(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(LeaseUnreachable, match=r"lease: is no lease"):
        FileLeaseStore(path, 5.0).read()


def test_a_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(LeaseUnreachable, match="No such file"):
        FileLeaseStore(tmp_path / "nowhere" / "lease", 5.0).write("me", 5.0, None)
