from pathlib import Path

import pytest

from pypto_serving.process.credentials.files import FileRefused, KeyLine, parse_keys

PATH = Path("keys")


def test_keys_stand_one_a_line_between_comments() -> None:
    keys = parse_keys(PATH, b"# ours \xc3\xa4\nfirst#1\r\n\n  second  \n")
    assert keys == (KeyLine(2, b"first#1"), KeyLine(4, b"second"))


def test_options_stand_behind_a_key() -> None:
    assert parse_keys(PATH, b"secret==  name=acme priority=-1..1\n") == (KeyLine(1, b"secret==", ("name=acme", "priority=-1..1")),)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"# only a comment\n"])
def test_a_file_without_keys_is_refused(content: bytes) -> None:
    with pytest.raises(FileRefused, match="keys: holds no key"):
        parse_keys(PATH, content)


@pytest.mark.parametrize("line", [b"two w\xc3\xb6rds", b"sch\xc3\xb6n", b"nul\x00"])
def test_a_key_that_no_header_carries_is_refused_without_showing_it(line: bytes) -> None:
    with pytest.raises(FileRefused, match="keys, line 2: ") as refused:
        parse_keys(PATH, b"good\n" + line)
    assert line.decode(errors="replace") not in str(refused.value)
