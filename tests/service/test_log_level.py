"""Operators change what processes log, while these run."""

import threading
from pathlib import Path

import pytest
from harness.service import Service, real_service, scripted_service, status_of
from harness.waiting import until

from pypto_serving.admin.v1 import admin_pb2
from pypto_serving.log.v1 import log_pb2
from pypto_serving.process.log_level import LogLevel


class Told:
    """Changes that processes have heard of; here all of them are one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes: list[log_pb2.LevelChange] = []
        self.threads: set[str] = set()  # on which they have
        monkeypatch.setattr(LogLevel, "change", self._change)

    def _change(self, change: log_pb2.LevelChange) -> None:
        self.changes.append(change)
        self.threads.add(threading.current_thread().name)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


async def set_level(service: Service, process: str = "") -> admin_pb2.SetLogLevelResponse:
    change = log_pb2.LevelChange(level=log_pb2.LEVEL_DEBUG, milliseconds=5000)
    return await service.admin.SetLogLevel(admin_pb2.SetLogLevelRequest(change=change, process=process))


async def test_every_process_is_told_or_those_of_a_name(byte_model: Path, told: Told) -> None:
    async with real_service(byte_model) as service:
        worker = f"worker {service.worker.address}"
        assert list((await set_level(service)).processes) == ["control plane", worker]
        await until(lambda: len(told.changes) == 2)
        for name in ("worker", worker):
            told.changes.clear()
            assert list((await set_level(service, name)).processes) == [worker]
            await until(lambda: bool(told.changes))
        assert [(change.level, change.milliseconds) for change in told.changes] == [(log_pb2.LEVEL_DEBUG, 5000)]


async def test_a_name_that_nobody_has_is_refused_with_those_there_are(scripted_model: Path, told: Told) -> None:
    async with scripted_service(scripted_model) as service:
        assert await status_of(set_level(service, "work")) == "INVALID_ARGUMENT"
        assert not told.changes


async def test_an_older_worker_is_left_out(scripted_model: Path, told: Told) -> None:
    async with scripted_service(scripted_model) as service:
        answer = await set_level(service)
        assert list(answer.processes) == ["control plane"] and list(answer.left_out) == [f"worker {service.worker.address}"]
        assert len(told.changes) == 1


async def test_the_engine_is_not_held_up_by_a_change_of_its_own_process(scripted_model: Path, told: Told) -> None:
    async with scripted_service(scripted_model) as service:
        await set_level(service)
        assert told.threads == {threading.current_thread().name}


async def test_a_change_that_makes_no_sense_changes_nothing(scripted_model: Path, told: Told) -> None:
    async with scripted_service(scripted_model) as service:
        request = admin_pb2.SetLogLevelRequest(change=log_pb2.LevelChange(milliseconds=0))
        assert await status_of(service.admin.SetLogLevel(request)) == "INVALID_ARGUMENT"
        assert not told.changes
