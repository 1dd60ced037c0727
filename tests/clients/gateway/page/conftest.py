"""A browser, and services for the page to show."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from harness.browser import Browser, start_chromium
from harness.running_control_plane import RunningControlPlane
from harness.running_gateway import RunningGateway, running_gateway


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = start_chromium(tmp_path_factory.mktemp("chromium"))
    yield started
    started.quit()


@asynccontextmanager
async def watched_gateway(server: RunningControlPlane, *flags: str) -> AsyncIterator[RunningGateway]:
    """A gateway that may show the state of a control plane."""
    ports = {name: f"127.0.0.1:{port}" for name, port in server.plane.ports.items()}
    shown = ("--admin-target", ports["admin"], "--metrics-url", f"http://{ports['metrics']}/metrics")
    async with running_gateway(ports["address"], flags=(*shown, *flags)) as gateway:
        yield gateway


@pytest.fixture
def watched():
    """The function `watched_gateway`."""
    return watched_gateway
