"""The demo, as `make demo` runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_real_model_answers(demo_model: Path, tmp_path: Path) -> None:
    demo = Path(__file__).parents[2] / "scripts" / "demo.py"
    result = subprocess.run([sys.executable, demo, "--model", demo_model], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "The capital of France is Paris." in result.stdout.splitlines()
