from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.edge.access import keys as keys_module
from control_plane.edge.access.keys import Keys, watch_keys
from pypto_serving.process.start_up import StartUpError


def test_any_of_several_keys_will_do_and_nothing_else() -> None:
    keys = Keys([b"one", b"two"])
    assert [key in keys for key in (b"one", b"two", b"on", b"one ", b"", b"ONE")] == [True, True, False, False, False, False]


def test_every_key_is_compared_whatever_the_first_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        lengths.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr(keys_module.hmac, "compare_digest", compare)
    keys = Keys([b"one", b"two", b"three"])
    for shown in (b"one", b"three", b"a much longer one than all of them", b""):
        _ = shown in keys
    assert lengths == [(32, 32)] * 12  # digests, as long as each other


@pytest.fixture
def empty_file(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "keys").write_text("# nobody\n")
    yield tmp_path / "keys"


def test_a_start_without_any_key_in_the_file_is_refused(empty_file: Path) -> None:
    with pytest.raises(StartUpError, match="keys: holds no key"):
        watch_keys("api_keys", empty_file)
