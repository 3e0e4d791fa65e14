"""Which addresses this server may send messages to.

Whoever may add a webhook endpoint chooses where the server connects to. So an address counts, not
a name: a name is resolved once for each try, and the connection goes to an address that was
checked (`app.notify.transport`).
"""

from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

import httpx

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_REFUSED = (
    ip_network("168.63.129.16/32"),  # Azure's metadata and DNS service, at a public address
    # What some versions of Python take for global, of the IANA special-purpose registries:
    ip_network("192.0.0.0/24"),
    ip_network("192.88.99.0/24"),
    ip_network("::/96"),  # IPv4-compatible
    ip_network("64:ff9b:1::/48"),  # NAT64 with a local prefix
    ip_network("100::/64"),
    ip_network("3fff::/20"),
    ip_network("5f00::/16"),
)
_PORT_MAX = 65535
_NAT64 = ip_network("64:ff9b::/96")


class AddressNotAllowed(Exception):
    """The server does not connect to this address; the message says why and what would help."""


def parse_address(text: str) -> Address | None:
    """Return the address that `text` is, or null for a name."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether the address is one of the public internet, seen through what wraps an IPv4 one."""
    hidden = _hidden_ipv4(address)
    if hidden is not None:
        return is_public(hidden)
    if isinstance(address, IPv6Address) and address.is_site_local:
        return False
    if any(address in network for network in _REFUSED):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _hidden_ipv4(address: Address) -> IPv4Address | None:
    """Return the IPv4 address inside a mapped, 6to4 or NAT64 one."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _is_inside(address: Address, networks: Sequence[Network]) -> bool:
    real = _hidden_ipv4(address) or address
    return any(real in network for network in networks)


def check_address(address: Address, *, scheme: str, allowed: Sequence[Network]) -> None:
    """Refuse an address that is not public, or one without TLS, unless it is in `allowed`.

    Raises:
        AddressNotAllowed: it is refused.
    """
    if _is_inside(address, allowed):
        return
    remedy = "name its network in ASSAY_WEBHOOK_ALLOW_NETWORKS if messages may go there"
    if not is_public(address):
        msg = f"{address} is not an address of the public internet: {remedy}"
        raise AddressNotAllowed(msg)
    if scheme != "https":
        msg = f"{address} would be sent messages without TLS: use https, or {remedy}"
        raise AddressNotAllowed(msg)


def check_url(url: str, *, allowed: Sequence[Network]) -> None:
    """Refuse what can be refused without asking a name server.

    Raises:
        AddressNotAllowed: the URL is malformed, carries a user, or names a refused address.
    """
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        msg = f"not a URL: {error}"
        raise AddressNotAllowed(msg) from error
    host = parts.host
    if parts.scheme not in ("https", "http") or not host:
        msg = "send a URL like https://ci.example.com/assay"
        raise AddressNotAllowed(msg)
    if parts.port is not None and not 0 < parts.port <= _PORT_MAX:
        msg = f"port {parts.port} is not one of 1 to {_PORT_MAX}"
        raise AddressNotAllowed(msg)
    if parts.userinfo or parts.fragment:
        msg = "the URL may hold neither a user nor a fragment: messages are signed instead"
        raise AddressNotAllowed(msg)
    address = parse_address(host)
    if address is not None:
        check_address(address, scheme=parts.scheme, allowed=allowed)
    elif parts.scheme == "http" and not allowed:
        msg = (
            f"messages to {host} would be sent without TLS: use https, or name its network in "
            "ASSAY_WEBHOOK_ALLOW_NETWORKS"
        )
        raise AddressNotAllowed(msg)
