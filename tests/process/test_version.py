import importlib.metadata
import sys
from pathlib import Path

import pytest

from clients.cli.main import main as run_client
from control_plane.edge.flags.programs import read_config as read_control_plane_config
from pypto_serving.process.version import program_name, version
from worker.config import read_config as read_worker_config


@pytest.mark.parametrize(
    "program",
    [read_control_plane_config, read_worker_config, lambda arguments: run_client(arguments, {})],
    ids=["control_plane", "worker", "clients"],
)
def test_every_program_shows_its_version(program: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        program(["--version"])  # type: ignore[operator]
    assert (end.value.code, capsys.readouterr().out) == (0, f"pypto-serving {importlib.metadata.version('pypto-serving')}\n")


def test_the_version_stands_in_no_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYPTO_SERVING_WORKER_VERSION", "true")
    with pytest.raises(SystemExit) as end:
        read_worker_config(["--model", str(tmp_path)])
    assert (end.value.code, capsys.readouterr().out) == (2, "")


def test_a_checkout_that_is_not_installed_has_a_version_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    assert version() == "0+checkout"


@pytest.mark.parametrize(
    ("started", "name"),
    [
        ("/venv/bin/pypto-serving-worker", "pypto-serving-worker"),
        ("/venv/worker/__main__.py", "python -m worker"),
        ("", "python -m worker"),
    ],
)
def test_help_names_the_program_that_was_started(started: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [started])
    assert program_name("worker") == name
