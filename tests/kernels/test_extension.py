"""Which build of the C++ kernels is loaded, and what a build refuses."""

import logging
import shutil
import sys
from pathlib import Path

import pytest
import torch

from kernels.cpu import build, extension


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Empty folders in the place of the user's builds and of the prebuilt ones."""
    prebuilt = tmp_path / "prebuilt"
    monkeypatch.setenv("PYPTO_SERVING_CACHE", str(tmp_path))
    monkeypatch.delenv("PYPTO_CPU_LEVEL", raising=False)
    monkeypatch.setattr(extension, "PREBUILT", prebuilt)
    monkeypatch.setattr(extension, "levels", lambda: ["avx512", "avx2", "generic"])
    for folder in (prebuilt, extension.user_builds()):
        folder.mkdir()
    return extension.user_builds(), prebuilt


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What the extension loads, instead of loading it."""
    paths: list[Path] = []
    monkeypatch.setattr(torch.ops, "load_library", paths.append)
    return paths


def add_build(folder: Path, level: str, compiler: str = "0000") -> Path:
    path = folder / f"{extension.file_stem(level)}-{compiler}.so"
    path.touch()
    return path


def test_the_best_level_that_was_built_is_loaded(folders: tuple[Path, Path], loaded: list[Path]) -> None:
    builds = [add_build(folders[1], level) for level in ("generic", "avx2", "avx512_bf16")]
    assert extension.load() == builds[1].stem.removeprefix("pypto_serving-")
    assert loaded == [builds[1]]


def test_a_level_that_was_asked_for_is_the_only_one(
    folders: tuple[Path, Path], loaded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = [add_build(folders[1], level) for level in ("generic", "avx512")]
    monkeypatch.setenv("PYPTO_CPU_LEVEL", "avx2")
    assert extension.load() is None
    monkeypatch.setenv("PYPTO_CPU_LEVEL", "generic")
    assert extension.load() and loaded == [builds[0]]


def test_a_build_of_the_users_own_goes_before_a_prebuilt_one(folders: tuple[Path, Path], loaded: list[Path]) -> None:
    add_build(folders[1], "avx2", "ffff")
    own = add_build(folders[0], "avx2", "0000")
    assert extension.load() and loaded == [own]


def test_a_build_for_another_torch_is_not_loaded(folders: tuple[Path, Path], loaded: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    add_build(folders[1], "avx2")
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert extension.load() is None and not loaded


def test_a_build_for_other_sources_is_not_loaded(
    folders: tuple[Path, Path], loaded: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add_build(folders[1], "avx2")
    sources = shutil.copytree(extension.SOURCES, tmp_path / "sources", ignore=shutil.ignore_patterns("prebuilt"))
    monkeypatch.setattr(extension, "SOURCES", sources)
    assert len(extension.built("avx2")) == 1
    with (sources / "norm.cpp").open("a") as file:
        file.write("\n")
    assert extension.load() is None and not loaded


def test_a_build_that_cannot_be_loaded_is_told_and_passed_over(folders: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    add_build(folders[1], "avx2")
    with caplog.at_level(logging.WARNING):
        assert extension.load() is None
    assert ["cannot be loaded" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PYPTO_SERVING_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/cpu-kernels"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/pypto-serving/cpu-kernels"),
        ({"HOME": "/c"}, "/c/.cache/pypto-serving/cpu-kernels"),
    ],
)
def test_builds_on_demand_lie_in_the_users_cache(environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYPTO_SERVING_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(extension.user_builds()) == expected


def run_build(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["build", *arguments])
    return build.main()


def test_without_sources_nothing_is_built(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "SOURCES", tmp_path / "empty")
    assert run_build(monkeypatch) == 1
    assert f"no C++ sources in {tmp_path / 'empty'}" in capsys.readouterr().err
    assert not list(folders[0].iterdir())


def test_a_missing_compiler_is_one_line(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_build(monkeypatch, "--compiler", "no-such-compiler") == 1
    assert capsys.readouterr().err.splitlines() == [
        "kernels.cpu.build: no compiler 'no-such-compiler': install g++, or name one with --compiler"
    ]


def test_a_cache_that_cannot_be_written_is_one_line(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PYPTO_SERVING_CACHE", str(tmp_path / "file"))
    assert run_build(monkeypatch) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "PYPTO_SERVING_CACHE or --into name other folders" in line
