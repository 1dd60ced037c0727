"""The process, as people start and stop it."""

import asyncio
import signal
import socket
import sys

import httpx
import pytest
from fakes.control_plane.inference_service import FakeInferenceService, FakeServer

from clients.gateway.config import TOOL_PARSERS
from clients.gateway.parsers.answer import FORMATS


async def start(*flags):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "clients.gateway", *flags, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )


async def ended(*flags):
    """Exit code, and the lines on standard error."""
    process = await start(*flags)
    _, said = await process.communicate()
    return process.returncode, said.decode().splitlines()


@pytest.fixture
def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


async def until_healthy(http):
    while True:
        try:
            return await http.get("/health")
        except httpx.ConnectError:
            await asyncio.sleep(0.02)


async def test_it_serves_until_sigterm_and_lets_a_running_answer_end(free_port):
    async with FakeServer(FakeInferenceService()) as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{free_port}") as http:
        process = await start("--port", str(free_port), "--target", server.target, "--log-format", "text")
        await until_healthy(http)
        server.service.gate.clear()
        answer = asyncio.ensure_future(http.post("/v1/completions", json={"prompt": "x"}))
        while not server.service.seen:
            await asyncio.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        server.service.gate.set()
        assert (await answer).json()["choices"][0]["text"] == "100 101 102 103 104 "
        await process.communicate()
        assert process.returncode == 0


async def test_a_second_signal_ends_it_at_once(free_port):
    async with FakeServer(FakeInferenceService()) as server, httpx.AsyncClient(base_url=f"http://127.0.0.1:{free_port}") as http:
        process = await start("--port", str(free_port), "--target", server.target)
        await until_healthy(http)
        server.service.gate.clear()
        answer = asyncio.ensure_future(http.post("/v1/completions", json={"prompt": "x"}))
        while not server.service.seen:
            await asyncio.sleep(0.005)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.1)
        await process.communicate()
        assert process.returncode == 0
        await asyncio.gather(answer, return_exceptions=True)


async def test_a_taken_port_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert await ended("--port", str(port)) == (1, [f"gateway: cannot listen on 127.0.0.1:{port}: Address already in use"])


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--tls-cert", "/none", "--tls-key", "/none"), "gateway: --tls-cert, --tls-key, --tls-client-ca: /none: no such file"),
        (("--upstream-tls-ca", "/none"), "gateway: --upstream-tls-ca, --upstream-tls-cert, --upstream-tls-key: /none: no such file"),
        (("--admin-target", "a:1", "--admin-key-file", "/none"), "gateway: --admin-key-file: /none: no such file"),
    ],
)
async def test_files_that_cannot_be_read_are_one_clear_line(flags, line):
    assert await ended("--port", "0", *flags) == (2, [line])


@pytest.mark.parametrize("flags", [("--target", "nowhere"), ("--tool-parser", "none"), ("--tls-cert", "x"), ("--upstream-tls-key", "x")])
async def test_wrong_flags_end_it_with_2(flags):
    code, said = await ended(*flags)
    assert code == 2 and flags[0] in said[-1]


def test_every_format_can_be_asked_for():
    assert {*TOOL_PARSERS} == {"auto", *FORMATS}
