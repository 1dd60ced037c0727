import pytest

from pypto_serving.process.address import is_loopback, split_address


def test_addresses_of_both_families_are_split():
    assert split_address("[::1]:50061") == ("::1", 50061)
    assert split_address("worker:1") == ("worker", 1)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(address)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("gpu-1", False),
    ],
)
def test_loopback_hosts_are_known(host, expected):
    assert is_loopback(host) is expected
