"""A call by hand, with header bytes that gRPC's own clients refuse to send."""

import asyncio
from collections.abc import Mapping

_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4


async def answer_to(port: int, path: str, headers: Mapping[bytes, bytes]) -> bytes:
    """Call the method `path` with an empty message; returns the frames that come back until the server has ended the stream."""
    fixed = {b":method": b"POST", b":scheme": b"http", b":path": path.encode(), b":authority": b"test", b"te": b"trailers"}
    block = b"".join(map(_literal, *zip(*{**fixed, b"content-type": b"application/grpc", **headers}.items(), strict=True)))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    frames = (_frame(_SETTINGS, 0, 0, b""), _frame(_HEADERS, _END_HEADERS, 1, block), _frame(_DATA, _END_STREAM, 1, bytes(5)))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"".join(frames))
    received = b""
    kind = flags = 0
    while not (kind == _HEADERS and flags & _END_STREAM):
        header = await reader.readexactly(9)
        kind, flags = header[3], header[4]
        received += header + await reader.readexactly(int.from_bytes(header[:3], "big"))
    writer.close()
    await writer.wait_closed()
    return received


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
