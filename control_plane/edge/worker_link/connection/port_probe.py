"""Tells a dead process from an unreachable one, which gRPC does not: a refused connection means that nobody is there."""

import asyncio
import enum
import socket

from pypto_serving.process.address import split_address


class Answer(enum.Enum):
    """What became of a connection."""

    OPEN = "open"
    REFUSED = "connection refused"
    SILENT = "no connection in time"
    UNREACHABLE = "can not connect"


async def probe_port(address: str, timeout_seconds: float) -> Answer:
    """Connect to host:port and hang up; tries every address that the name stands for."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _probe_each(*split_address(address))
    except TimeoutError:
        return Answer.SILENT


async def _probe_each(host: str, port: int) -> Answer:
    loop = asyncio.get_running_loop()
    answer = Answer.UNREACHABLE
    try:
        candidates = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # unknown, or not even a name
        return answer
    for family, kind, protocol, _, endpoint in candidates:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.setblocking(False)
                await loop.sock_connect(tried, endpoint)
        except ConnectionRefusedError:
            answer = Answer.REFUSED
        except OSError:
            continue
        else:
            return Answer.OPEN
    return answer
