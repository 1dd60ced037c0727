import json
import logging
from collections.abc import Iterator

import pytest

from pypto_serving.process import logs


@pytest.fixture(autouse=True)
def _root_logger_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_an_event_is_one_json_object_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "info")
    logging.getLogger("a.b").info("worker joined", extra={"address": "127.0.0.1:1"})
    entry = json.loads(capsys.readouterr().err)
    assert (entry["level"], entry["logger"], entry["message"], entry["address"]) == ("info", "a.b", "worker joined", "127.0.0.1:1")


def test_a_traceback_stays_on_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "info")
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger().exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: no" in json.loads(line)["traceback"]


def test_text_appends_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text", "info")
    logging.getLogger("a").info("joined", extra={"epoch": 3})
    logging.getLogger("a").debug("hidden")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO    a: joined epoch=3")
