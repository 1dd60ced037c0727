import argparse
from collections.abc import Callable

import pytest

from pypto_serving.process import argument_types as types


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (types.count, "0", 0),
        (types.positive, "1", 1),
        (types.port, "65535", 65535),
        (types.seconds, "0", 0.0),
        (types.positive_seconds, "0.5", 0.5),
        (types.seconds_from(0.1), "0.1", 0.1),
        (types.between(1, 1024), "1024", 1024),
        (types.number, "-1.5", -1.5),
        (types.number_between(0, 10), "0.5", 0.5),
        (types.address, "[::1]:80", "[::1]:80"),
        (types.address_or_socket, "host:80", "host:80"),
        (types.address_or_socket, "unix:/run/socket", "unix:/run/socket"),
    ],
)
def test_accepts(kind: Callable[[str], object], text: str, value: object) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (types.count, "-1"),
        (types.positive, "0"),
        (types.positive, "2147483648"),
        (types.port, "65536"),
        (types.port, "http"),
        (types.seconds, "-1"),
        (types.seconds, "nan"),
        (types.seconds, "soon"),
        (types.positive_seconds, "0"),
        (types.positive_seconds, "nan"),
        (types.seconds_from(0.1), "0.0001"),
        (types.seconds_from(0.1), "nan"),
        (types.between(1, 1024), "1025"),
        (types.number_between(0, 10), "10.5"),
        (types.number_between(0, 10), "nan"),
        (types.number, "nan"),
        (types.number, "inf"),
        (types.address, "localhost"),
        (types.address, ":80"),
        (types.address, "host:0"),
        (types.address_or_socket, "host"),
        (types.address_or_socket, "unix:run/socket"),
        (types.address_or_socket, "unix:/" + 107 * "x"),
    ],
)
def test_a_refusal_names_the_value(kind: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{text}"):
        kind(text)
