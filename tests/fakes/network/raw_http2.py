"""HTTP/2 by hand: header bytes that gRPC's own clients refuse to send, and pings that they hold back."""

import asyncio
import contextlib
from collections.abc import Mapping

_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY = 0, 1, 4, 6, 7
_ACK = _END_STREAM = 1
_END_HEADERS = 4


async def answer_to(port: int, path: str, headers: Mapping[bytes, bytes]) -> bytes:
    """Call the method `path` with an empty message; returns the frames that come back until the server has ended the stream."""
    reader, writer = await _connect("127.0.0.1", port)
    writer.write(_call(path, headers) + _frame(_DATA, _END_STREAM, 1, bytes(5)))
    received = b""
    kind = flags = 0
    while not (kind == _HEADERS and flags & _END_STREAM):
        header = await reader.readexactly(9)
        kind, flags = header[3], header[4]
        received += header + await reader.readexactly(int.from_bytes(header[:3], "big"))
    writer.close()
    await writer.wait_closed()
    return received


async def ping(address: str, count: int, interval_seconds: float, method: str = "") -> tuple[int, bool]:
    """Send pings, beside an open call of `method` or on an idle connection; returns the answers, and whether we were sent away."""
    host, _, port = address.rpartition(":")
    reader, writer = await _connect(host, int(port))
    if method:
        writer.write(_call(method, {}))
    reading = asyncio.create_task(_read_pings(reader))
    for number in range(count):
        writer.write(_frame(_PING, 0, 0, number.to_bytes(8, "big")))
        await asyncio.sleep(interval_seconds)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return await reading


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
    return reader, writer


async def _read_pings(reader: asyncio.StreamReader) -> tuple[int, bool]:
    num_answers = 0
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            header = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(header[:3], "big"))
            if header[3] == _GOAWAY:
                return num_answers, True
            num_answers += header[3] == _PING and header[4] & _ACK
    return num_answers, False


def _call(path: str, headers: Mapping[bytes, bytes]) -> bytes:
    """The headers of a call, which stays open."""
    fixed = {b":method": b"POST", b":scheme": b"http", b":path": path.encode(), b":authority": b"test", b"te": b"trailers"}
    fields = {**fixed, b"content-type": b"application/grpc", **headers}
    block = b"".join(b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields.items())
    return _frame(_HEADERS, _END_HEADERS, 1, block)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
