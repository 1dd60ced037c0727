"""What the demo does with processes that end early or do not stop."""

from pathlib import Path

import pytest

from scripts import demo


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit('worker: no such model')")
    (tmp_path / "stubborn.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(demo, "LOG_DIRECTORY", tmp_path)


def test_process_that_ends_early_is_shown_with_its_last_lines() -> None:
    with demo.running(["broken"], "broken") as process:
        process.wait(30)
        assert demo.ended_among({"broken": process}) == "broken ended with exit code 1:\nworker: no such model"


def test_process_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    with demo.running(["stubborn"], "stubborn", stop_seconds=0.1) as process:
        while "up" not in (tmp_path / "stubborn.log").read_text():
            assert demo.ended_among({"stubborn": process}) == ""
    assert process.returncode == -9
