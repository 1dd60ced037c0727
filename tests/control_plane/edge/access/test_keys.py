from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.edge.access import keys as keys_module
from control_plane.edge.access.callers import Caller, PriorityRange
from control_plane.edge.access.keys import Keys, watch_keys
from control_plane.engine.ports import Quota, Tenant
from pypto_serving.process.start_up import StartUpError


def test_any_of_several_keys_will_do_and_nothing_else() -> None:
    keys = Keys([(b"one", Caller("first")), (b"two", Caller("second"))])
    callers = [keys.caller(key) for key in (b"one", b"two", b"on", b"one ", b"", b"ONE")]
    assert callers == [Caller("first"), Caller("second"), None, None, None, None]


def test_every_key_is_compared_whatever_the_first_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        lengths.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr(keys_module.hmac, "compare_digest", compare)
    keys = Keys((key, Caller()) for key in (b"one", b"two", b"three"))
    for shown in (b"one", b"three", b"a much longer one than all of them", b""):
        keys.caller(shown)
    assert lengths == [(32, 32)] * 12  # digests, as long as each other


@pytest.fixture
def empty_file(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "keys").write_text("# nobody\n")
    yield tmp_path / "keys"


def test_a_start_without_any_key_in_the_file_is_refused(empty_file: Path) -> None:
    with pytest.raises(StartUpError, match="keys: holds no key"):
        watch_keys("api_keys", empty_file)


def test_a_key_has_a_name_and_a_range_or_is_told_apart_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one name=acme priority=-5..5\ntwo\nthree priority=0..0\n")
    keys = watch_keys("api_keys", tmp_path / "keys").current()
    assert keys.caller(b"one") == Caller("acme", PriorityRange(-5, 5))
    assert keys.caller(b"two") == Caller("key-3fc4ccfe745870e2", is_named=False)
    assert keys.caller(b"three").priorities == PriorityRange(0, 0)


def test_a_quota_belongs_to_the_name_whichever_of_its_lines_tell_it(tmp_path: Path) -> None:
    lines = ("one name=acme tokens-per-minute=6000", "two name=acme requests=4", "three name=acme requests=4", "four requests=1")
    (tmp_path / "keys").write_text("\n".join(lines))
    keys = watch_keys("api_keys", tmp_path / "keys").current()
    assert [keys.caller(key).quota for key in (b"one", b"two", b"three")] == [Quota(6000, 4)] * 3
    assert keys.caller(b"four").tenant == Tenant(keys.caller(b"four").name, Quota(None, 1), is_named=False)


@pytest.mark.parametrize("word", ["requests=5", "tokens-per-minute=1"])
def test_a_name_with_two_quotas_is_refused_by_line(tmp_path: Path, word: str) -> None:
    (tmp_path / "keys").write_text(f"one name=acme tokens-per-minute=6000 requests=4\nsecret name=acme {word}\n")
    with pytest.raises(StartUpError, match="keys, line 2: an earlier line of the same name has another") as refused:
        watch_keys("api_keys", tmp_path / "keys")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("number", ["", "0", "-1", "1e3", "1.5", "01", "1000000000", "\u0663", "many"])
@pytest.mark.parametrize("word", ["requests", "tokens-per-minute"])
def test_a_quota_that_is_no_number_from_one_is_refused(tmp_path: Path, word: str, number: str) -> None:
    (tmp_path / "keys").write_text(f"secret {word}={number}\n")
    with pytest.raises(StartUpError, match="keys, line 1: "):
        watch_keys("api_keys", tmp_path / "keys")


@pytest.mark.parametrize(
    "options", ["word", "name=", "name=a/b", "name=ä", "nam=x", "priority=1", "priority=", "name=x priority=2..1", "name=x name=y"]
)
def test_options_that_are_none_are_refused_by_line_without_showing_the_key(tmp_path: Path, options: str) -> None:
    (tmp_path / "keys").write_text(f"good\nsecret {options}\n")
    with pytest.raises(StartUpError, match="keys, line 2: ") as refused:
        watch_keys("api_keys", tmp_path / "keys")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("other", ["secret", "secret name=b", "secret name=a priority=0..9", "secret name=a requests=1"])
def test_a_key_that_stands_for_two_callers_is_refused_by_line_without_showing_it(tmp_path: Path, other: str) -> None:
    (tmp_path / "keys").write_text(f"secret name=a\ngood\n{other}\n")
    with pytest.raises(StartUpError, match="keys, line 3: ") as refused:
        watch_keys("api_keys", tmp_path / "keys")
    assert "secret" not in str(refused.value)


def test_a_line_may_be_there_twice(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\nsecret\n")
    assert watch_keys("api_keys", tmp_path / "keys").current().caller(b"secret") is not None
