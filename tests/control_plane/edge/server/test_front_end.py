"""How a front end comes to serve."""

import socket
from contextlib import AsyncExitStack

import pytest
from harness.processes import fixed_ports

from control_plane.edge.flags.programs import read_config
from control_plane.edge.server.front_end import FrontEndAssembly
from pypto_serving.process.start_up import StartUpError


async def test_a_shared_port_gets_no_connections_before_the_model_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = fixed_ports(1)

    def read_model(*_: object) -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        raise StartUpError("read")

    monkeypatch.setattr("control_plane.edge.server.front_end.read_model", read_model)
    config = read_config(["--model", "m", "--port", str(port), "--frontends", "2", "--part", "0", "--socket", "s"]).front_end
    async with AsyncExitStack() as cleanup:
        with pytest.raises(StartUpError, match="read"):
            FrontEndAssembly(config, cleanup)
