"""Files that change under a running process."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pypto_serving.process.credentials.files import FileRefused, ReloadedFiles
from pypto_serving.process.credentials.metrics import CredentialCollector
from pypto_serving.process.start_up import StartUpError


def parse(contents: Sequence[bytes]) -> str:
    text = contents[0].decode()
    if text == "broken":
        raise FileRefused("it is broken")
    return text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("one")
    return tmp_path / "file"


@pytest.fixture
def files(path: Path) -> ReloadedFiles[str]:
    return ReloadedFiles("test", [path], parse)


def test_a_change_counts_at_the_next_use(path: Path, files: ReloadedFiles[str]) -> None:
    assert files.current() == "one"
    path.write_text("two")  # as long as before, and within a tick of the file system's clock
    assert files.current() == "two"
    assert (files.num_reloads, files.num_refusals) == (1, 0)


def test_unchanged_files_are_parsed_once(path: Path) -> None:
    parsed: list[bytes] = []
    files = ReloadedFiles("test", [path], lambda contents: parsed.append(contents[0]))
    for _ in range(3):
        files.current()
    assert parsed == [b"one"]


@pytest.mark.parametrize("fault", ["broken", "missing", "directory", "too long"])
def test_the_last_good_content_stays_and_every_change_is_told_once(
    path: Path, files: ReloadedFiles[str], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.unlink()
    if fault == "directory":
        path.mkdir()
    elif fault != "missing":
        path.write_text("broken" if fault == "broken" else "x" * (1 << 20) + "x")
    assert [files.current() for _ in range(3)] == ["one"] * 3
    assert (files.num_refusals, len(caplog.records)) == (1, 1)
    os.replace(path, path.with_name("old")) if path.exists() else None
    path.write_text("one")
    assert files.current() == "one" and files.num_reloads == 1


def test_files_that_change_while_they_are_parsed_are_looked_at_again(path: Path) -> None:
    contents_seen: list[bytes] = []

    def parse_slowly(contents: Sequence[bytes]) -> bytes:
        contents_seen.append(contents[0])
        if contents[0] == b"two":
            path.write_text("three")
        return contents[0]

    files = ReloadedFiles("test", [path], parse_slowly)
    path.write_text("two")
    assert [files.current(), files.current()] == [b"one", b"three"]
    assert files.num_reloads == 1


@pytest.mark.parametrize(("content", "message"), [("broken", "it is broken"), (None, "no such file")])
def test_a_start_with_a_broken_file_is_one_line(path: Path, content: str | None, message: str) -> None:
    path.write_text(content) if content else path.unlink()
    with pytest.raises(StartUpError, match=message) as refused:
        ReloadedFiles("test", [path], parse)
    assert "\n" not in str(refused.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StartUpError, match="is no regular file"):
        ReloadedFiles("test", [tmp_path / "pipe"], parse)


def test_a_scrape_notices_and_counts_changes(path: Path, files: ReloadedFiles[str]) -> None:
    registry = CollectorRegistry()
    registry.register(CredentialCollector("x_", [files]))
    path.write_text("broken")
    assert b'x_credential_reloads_total{credentials="test",outcome="refused"} 1.0' in generate_latest(registry)
    path.write_text("good")
    assert b'x_credential_reloads_total{credentials="test",outcome="ok"} 1.0' in generate_latest(registry)
