"""An httpx transport that connects to checked addresses only.

A name is resolved once for each request. All of its addresses have to be allowed, and the
connection goes to one of them by number, so a name server that answers differently the next time
gains nothing. TLS and the `Host` header still name the host.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

import httpx

from app.notify.addresses import Address, Network, check_address, parse_address

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Return the addresses of a host, in the order of preference.

    Raises:
        httpx.ConnectError: the name has none.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        msg = f"the name {host} can't be resolved: {error}"
        raise httpx.ConnectError(msg) from error
    addresses = (parse_address(str(sockaddr[0])) for *_, sockaddr in found)
    return [address for address in dict.fromkeys(addresses) if address is not None]


class CheckedTransport(httpx.AsyncBaseTransport):
    """Resolves, checks, connects. Follows no redirect and knows no proxy."""

    def __init__(self, allowed: Sequence[Network], resolve: Resolve = resolve) -> None:
        """Take the networks that are allowed although they are not public."""
        self._allowed = allowed
        self._resolve = resolve
        # A kept connection is found again by address alone, and would serve another name's TLS.
        self._inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_keepalive_connections=0))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request.

        Raises:
            AddressNotAllowed: one of the host's addresses is refused; nothing was connected to.
            httpx.TransportError: none of them could be reached, or the answer broke off.
        """
        url = request.url
        host = url.raw_host.decode("ascii")
        literal = parse_address(host.strip("[]"))
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = [literal] if literal is not None else await self._resolve(host, port)
        for address in addresses:
            check_address(address, scheme=url.scheme, allowed=self._allowed)
        unreachable = httpx.ConnectError(f"the name {host} has no address")
        for address in addresses:
            try:
                return await self._inner.handle_async_request(_to(request, address, host))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                unreachable = httpx.ConnectError(f"{host} at {address}: {error}")
        raise unreachable

    async def aclose(self) -> None:
        """Close what is open."""
        await self._inner.aclose()


def _to(request: httpx.Request, address: Address, host: str) -> httpx.Request:
    """Return the request with its connection going to `address`; its headers keep the host."""
    return httpx.Request(
        request.method,
        request.url.copy_with(host=str(address)),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": host.strip("[]")},
    )
