"""A real process that says odd things."""

import asyncio
import json
import logging
import os
import signal
from pathlib import Path

import pytest

from clients.serve.child import Child


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes one that runs a text of Python."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))

    def make(text: str) -> Child:
        (tmp_path / "talker.py").write_text(text)
        return Child("odd", "talker", [], ("serving", ("talker",)), lambda: None)

    return make


@pytest.mark.parametrize("odd", [{"time": "yesterday"}, {"time": 5}, {"level": []}])
async def test_a_log_that_cannot_be_read_is_taken_for_a_line(child, caplog, odd):
    line = json.dumps({"level": "info", "logger": "talker", "message": "m", **odd})
    assert await child(f"print({line!r})").live() == 0
    assert [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "talker"] == [(logging.WARNING, line)]


async def test_a_line_that_is_too_long_is_left_out(child, monkeypatch):
    monkeypatch.setattr("clients.serve.child._MAX_LINE_BYTES", 1 << 12)
    odd = child("print('x' * (1 << 20)); print('the end')")
    assert await odd.live() == 0
    assert odd.last_line == "the end"


async def test_a_signal_that_comes_while_it_is_started_reaches_it(child):
    odd = child("import time; time.sleep(60)")
    living = asyncio.create_task(odd.live())
    await asyncio.sleep(0)
    odd.send(signal.SIGTERM)
    assert await asyncio.wait_for(living, 20) == -signal.SIGTERM


@pytest.mark.parametrize(("level", "is_shown"), [("debug", True), ("info", False), ("warning", True)])
async def test_of_a_log_of_warnings_debug_lines_are_shown_that_somebody_asked_the_process_for(child, caplog, monkeypatch, level, is_shown):
    monkeypatch.setattr(logging.getLogger(), "level", logging.WARNING)
    line = json.dumps({"level": level, "logger": "talker", "message": "m"})
    assert await child(f"print({line!r})").live() == 0
    assert ("m" in [record.getMessage() for record in caplog.records]) is is_shown
