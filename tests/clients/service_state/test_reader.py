"""Reading a whole service, and what does not answer."""

import asyncio
from pathlib import Path

import pytest
from fakes.text.model_directory import write_model_directory
from harness.service import scripted_service

from clients.connection import Credentials
from clients.service_state.observer import ServiceObserver
from clients.service_state.reader import ServiceReader


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model_directory(tmp_path / "model")


async def test_a_service_tells_its_workers_and_what_they_have_done(model):
    async with scripted_service(model) as service:
        ports = service.server.plane.ports
        reader = ServiceReader([f"127.0.0.1:{ports['admin']}"], [f"http://127.0.0.1:{ports['metrics']}/metrics"])
        observer = ServiceObserver()
        before = observer.observe(await reader.read())
        await service.scripted(b"abc", max_tokens=3)
        after = observer.observe(await reader.read())
        await reader.close()
    (worker,) = after.workers
    assert (worker.address, worker.phase, worker.pages.total > 0) == (service.worker.address, "in_session", True)
    assert before.activity.time_to_first_token is None and not after.failures
    assert after.activity.time_to_first_token.count > 0 and after.activity.rates.generation_tokens > 0


async def test_what_does_not_answer_is_named_beside_what_does(model, dead_target):
    async with scripted_service(model) as service:
        admin = f"127.0.0.1:{service.server.plane.ports['admin']}"
        reader = ServiceReader([admin, dead_target], [f"http://{dead_target}/metrics"])
        reading = await reader.read()
        await reader.close()
    assert [*reading.states] == [admin] and not reading.metrics
    assert reading.failures[dead_target].startswith("UNAVAILABLE: ") and "refused" in reading.failures[f"http://{dead_target}/metrics"]


async def test_the_admin_key_is_shown(model, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    async with scripted_service(model, "--admin-key-file", str(keys)) as service:
        admin = f"127.0.0.1:{service.server.plane.ports['admin']}"
        readers = [ServiceReader([admin], [], Credentials(api_key=key)) for key in ("secret", "wrong")]
        right, wrong = await asyncio.gather(*(reader.read() for reader in readers))
        await asyncio.gather(*(reader.close() for reader in readers))
    assert [*right.states] == [admin]
    assert wrong.failures[admin].startswith("UNAUTHENTICATED: ")
