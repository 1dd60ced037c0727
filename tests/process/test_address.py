import pytest

from pypto_serving.process.address import is_loopback, join_address, proxy_options, split_address


def test_addresses_of_both_families_are_split():
    assert split_address("[::1]:50061") == ("::1", 50061)
    assert split_address("worker:1") == ("worker", 1)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x", "[host]:1", "[::1:1", "::1]:1", "[]:1"])
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


@pytest.mark.parametrize("address", ["::1:50061", "fd00::2", "fd00::2:1"])
def test_net_01_ipv6_without_brackets_is_refused_and_told_what_to_write(address):
    with pytest.raises(ValueError, match=r"is not host:port: an IPv6 host needs brackets, \[::1\]:50061"):
        split_address(address)


def test_net_01_addresses_are_joined_with_brackets_where_they_belong():
    assert [join_address("fd00::2", 1), join_address("host", 1)] == ["[fd00::2]:1", "host:1"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1"])
def test_net_02_no_proxy_stands_before_this_machine(address):
    assert dict(proxy_options(address)) == {"grpc.enable_http_proxy": 0}


@pytest.mark.parametrize("address", ["worker-1:1", "10.0.0.1:1", "unix:/run/worker"])
def test_net_02_others_are_reached_as_the_environment_says(address):
    assert proxy_options(address) == ()
