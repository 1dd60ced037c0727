import pytest

from pypto_serving.process.address import split_address


def test_addresses_of_both_families_are_split():
    assert split_address("[::1]:50061") == ("::1", 50061)
    assert split_address("worker:1") == ("worker", 1)


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(address)
