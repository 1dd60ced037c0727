import socket

import pytest
from fakes.control_plane.inference_service import FakeInferenceService, FakeServer


@pytest.fixture
async def server():
    async with FakeServer(FakeInferenceService()) as running:
        yield running


@pytest.fixture
def dead_target():
    """An address where nobody listens, and nobody else can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
