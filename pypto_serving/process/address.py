"""Addresses of servers, written host:port."""

import ipaddress
import re


def split_address(address: str) -> tuple[str, int]:
    """Split host:port, without the brackets of an IPv6 host, which has to have them; raises ValueError naming the address."""
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if bracketed else host
    if not name or not port.isdecimal() or not 0 < int(port) < 65536 or bracketed != (":" in name):
        hint = ": an IPv6 host needs brackets, [::1]:50061" if ":" in name and not bracketed else ""
        raise ValueError(f"{address!r} is not host:port{': leave the scheme out' if '://' in address else hint}")
    return name, int(port)


def require_target(target: str) -> None:
    """Raise ValueError for what gRPC would look up as a name, and not find: a host without a port. Schemes such as unix: are gRPC's."""
    if not re.match(r"(unix|unix-abstract|dns|ipv4|ipv6|xds|passthrough):", target):
        split_address(target)


def join_address(host: str, port: int) -> str:
    """host:port, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_ip(host: str) -> bool:
    """Whether it is an IP address, without brackets and port."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def proxy_options(address: str) -> tuple[tuple[str, int], ...]:
    """Options of a gRPC channel to `address`: http_proxy and its like are not for this machine."""
    try:
        host, _ = split_address(address)
    except ValueError:  # a target of another form, such as unix:/path
        return ()
    return (("grpc.enable_http_proxy", 0),) if is_loopback(host) else ()
