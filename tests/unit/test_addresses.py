"""Which addresses messages may go to; the connections are real ones to listeners on loopback."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

import httpx
import pytest

from app.notify.addresses import (
    Address,
    AddressNotAllowed,
    check_address,
    check_url,
    is_public,
)
from app.notify.transport import CheckedTransport

LOOPBACK = (ip_network("127.0.0.1/32"),)


@pytest.mark.parametrize(
    "written",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.0.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",  # metadata of clouds
        "168.63.129.16",  # metadata of Azure, at a public address
        "100.64.0.1",  # carrier-grade NAT
        "0.0.0.0",
        "0.1.2.3",
        "192.0.0.8",
        "192.88.99.1",
        "198.18.0.1",
        "203.0.113.5",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",  # IPv4-compatible
        "::ffff:169.254.169.254",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "2002:7f00:1::",  # 6to4
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",  # Teredo
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "3fff::1",
        "5f00::1",
    ],
)
def test_what_is_not_of_the_public_internet_is_refused(written: str) -> None:
    assert not is_public(ip_address(written))
    with pytest.raises(AddressNotAllowed, match="ASSAY_WEBHOOK_ALLOW_NETWORKS"):
        check_address(ip_address(written), scheme="https", allowed=())


@pytest.mark.parametrize(
    "written",
    [
        *("8.8.8.8", "1.1.1.1", "172.32.0.1"),
        *("2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"),
    ],
)
def test_public_addresses_are_allowed_with_tls_only(written: str) -> None:
    check_address(ip_address(written), scheme="https", allowed=())
    with pytest.raises(AddressNotAllowed, match="without TLS"):
        check_address(ip_address(written), scheme="http", allowed=LOOPBACK)


def test_a_network_that_is_allowed_opens_itself_and_no_other() -> None:
    allowed = (ip_network("10.1.0.0/16"), ip_network("fd00:1::/32"))
    for written in ("10.1.2.3", "::ffff:10.1.2.3", "fd00:1::5"):
        check_address(ip_address(written), scheme="http", allowed=allowed)
    for written in ("10.2.0.1", "fd00:2::5", "::ffff:10.2.0.1"):
        with pytest.raises(AddressNotAllowed):
            check_address(ip_address(written), scheme="https", allowed=allowed)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ci.example.com/assay",
        "ftp://ci.example.com/",
        "file:///etc/passwd",
        "https://",
        "https://ci.example.com:0/",
        "https://ci.example.com:99999/",
        "https://user:pw@ci.example.com/",
        "https://user@ci.example.com/",
        "https://ci.example.com/#part",
        "https://ci.example.com/\x00",
        "https://127.0.0.1/",
        "https://[::ffff:169.254.169.254]/latest",
        "https://[64:ff9b::a9fe:a9fe]/",
        "http://ci.example.com/assay",
    ],
)
def test_urls_that_are_refused_at_once(url: str) -> None:
    with pytest.raises(AddressNotAllowed):
        check_url(url, allowed=())


def test_urls_that_are_taken() -> None:
    check_url("https://ci.example.com/assay?team=7", allowed=())
    check_url("https://8.8.8.8:8443/", allowed=())
    check_url("http://127.0.0.1:9000/", allowed=LOOPBACK)
    check_url("http://intranet/assay", allowed=LOOPBACK)  # its address is checked at each try


@asynccontextmanager
async def listener(
    answer: bytes, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port on 127.0.0.1 that answers each request so, and what it was sent."""
    heard: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Names:
    """A name server that gives each of these answers once, in turn."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)

    async def __call__(self, _host: str, _port: int) -> Sequence[Address]:
        return [ip_address(text) for text in self.answers.pop(0)]


def client(names: Names | None = None) -> httpx.AsyncClient:
    """A client that may connect to 127.0.0.1."""
    transport = CheckedTransport(LOOPBACK) if names is None else CheckedTransport(LOOPBACK, names)
    return httpx.AsyncClient(transport=transport, timeout=10, trust_env=False)


async def test_the_name_is_asked_for_once_and_the_checked_address_is_connected_to() -> None:
    names = Names(["127.0.0.1"], ["127.0.0.2"])  # then it points elsewhere: rebinding
    async with listener(OK) as (port, heard), client(names) as http:
        answer = await http.get(f"http://ci.example.com:{port}/a?b=c")
        assert answer.status_code == httpx.codes.OK
        assert names.answers == [["127.0.0.2"]]
        with pytest.raises(AddressNotAllowed, match=r"127\.0\.0\.2"):
            await http.get(f"http://ci.example.com:{port}/")
    [request] = heard
    assert request.startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert f"host: ci.example.com:{port}\r\n".encode() in request.lower()


@pytest.mark.parametrize("answers", [["10.0.0.1", "127.0.0.1"], ["127.0.0.1", "10.0.0.1"]])
async def test_one_refused_address_among_several_is_enough(answers: list[str]) -> None:
    async with listener(OK) as (port, heard), client(Names(answers)) as http:
        with pytest.raises(AddressNotAllowed, match=r"10\.0\.0\.1"):
            await http.get(f"http://ci.example.com:{port}/")
    assert heard == []


@pytest.mark.parametrize("host", ["0x7f.2", "2130706434", "127.2"])
async def test_other_ways_to_write_an_address_are_asked_for_like_names(host: str) -> None:
    names = Names(["127.0.0.2"])  # which is what the system makes of them
    async with client(names) as http:
        with pytest.raises(AddressNotAllowed, match=r"127\.0\.0\.2"):
            await http.get(f"http://{host}:9/")


async def test_an_address_that_does_not_answer_is_followed_by_the_next() -> None:
    async with listener(OK) as (port, heard):
        allowed = (ip_network("127.0.0.0/8"),)
        transport = CheckedTransport(allowed, Names(["127.0.0.9", "127.0.0.1"], ["127.0.0.9"], []))
        async with httpx.AsyncClient(transport=transport, timeout=10, trust_env=False) as http:
            await http.get(f"http://ci.example.com:{port}/")
            with pytest.raises(httpx.ConnectError, match=r"ci.example.com at 127\.0\.0\.9"):
                await http.get(f"http://ci.example.com:{port}/")
            with pytest.raises(httpx.ConnectError, match="no address"):
                await http.get(f"http://ci.example.com:{port}/")
    assert len(heard) == 1


async def test_no_redirect_is_followed() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    async with listener(moved) as (port, _heard), client() as http:
        answer = await http.get(f"http://127.0.0.1:{port}/")
    assert answer.status_code == httpx.codes.FOUND


async def test_tls_checks_the_certificate_against_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ci.example.com"
    files = ["-addext", "subjectAltName=DNS:ci.example.com", "-keyout", str(key)]
    subprocess.run(
        [*command.split(), *files, "-out", str(certificate)], check=True, capture_output=True
    )
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    named: list[str | None] = []
    tls.sni_callback = lambda _socket, name, _context: named.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    names = Names(["127.0.0.1"], ["127.0.0.1"])
    async with listener(OK, tls=tls) as (port, _heard), client(names) as http:
        assert (await http.get(f"https://ci.example.com:{port}/")).status_code == httpx.codes.OK
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await http.get(f"https://other.example.com:{port}/")
    assert named == ["ci.example.com", "other.example.com"]
