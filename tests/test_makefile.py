"""What `make` would run."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_OF_A_MAKE_AROUND = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "NPU")


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("made_for_npu", "variables", "constraints", "extras"),
    [
        (False, (), "constraints.txt", ".[dev]"),
        (False, ("NPU=1",), "build/constraints.txt", ".[dev,npu]"),
        (True, (), "build/constraints.txt", ".[dev,npu]"),
    ],
)
def test_an_environment_for_an_npu_is_installed_anew_for_one(
    tmp_path: Path, made_for_npu: bool, variables: tuple[str, ...], constraints: str, extras: str
) -> None:
    if made_for_npu:
        (tmp_path / ".npu").touch()
    lines = _dry_run("serve-worker", f"VENV={tmp_path}", *variables)
    installs = [line.split() for line in lines if f"{tmp_path}/bin/pip install" in line]
    assert {words[words.index("--constraint") + 1] for words in installs} == {constraints}
    assert f"'{extras}'" in installs[1]
    assert (f"touch {tmp_path}/.npu" in lines) == (constraints != "constraints.txt")


def _dry_run(*arguments: str) -> list[str]:
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_MAKE_AROUND}
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
