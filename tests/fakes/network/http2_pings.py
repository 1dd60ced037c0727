"""Pings of HTTP/2 by hand: gRPC's own clients hold theirs back when they please."""

import asyncio
import contextlib

_HEADERS, _SETTINGS, _PING, _GOAWAY = 1, 4, 6, 7
_ACK, _END_HEADERS = 1, 4


async def ping(address: str, count: int, interval_seconds: float, method: str = "") -> tuple[int, bool]:
    """Send pings, beside an open call of `method` or on an idle connection; returns the answers, and whether we were sent away."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
    if method:
        writer.write(_frame(_HEADERS, _END_HEADERS, 1, _request(method)))
    reading = asyncio.create_task(_read(reader))
    for number in range(count):
        writer.write(_frame(_PING, 0, 0, number.to_bytes(8, "big")))
        await asyncio.sleep(interval_seconds)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return await reading


async def _read(reader: asyncio.StreamReader) -> tuple[int, bool]:
    num_answers = 0
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            header = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(header[:3], "big"))
            if header[3] == _GOAWAY:
                return num_answers, True
            num_answers += header[3] == _PING and header[4] & _ACK
    return num_answers, False


def _request(method: str) -> bytes:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "test",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
