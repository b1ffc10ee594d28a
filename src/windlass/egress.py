"""The only way to user-supplied addresses: webhook receivers and the servers of solvers.

A name is resolved here, every address it has is checked, and the connection goes to the very address that was checked. Internal addresses
are refused unless allowed; redirects are not followed, proxies not used, connections not reused.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from windlass.errors import BadInput, EgressFailed, EgressRefused, EgressTimeout, EgressTooLarge
from windlass.extras import install

if TYPE_CHECKING:
    import ssl

    import httpcore

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host name; OSError when there are none."""
Connect = Callable[[str, int], Awaitable["httpcore.AsyncNetworkStream"]]
"""A connection to an address that was checked."""

LONGEST = 2_048  # characters of a URL
_PORTS = {"http": 80, "https": 443}
_USER_PORTS = 1_024  # below it are mail, shells and files, where a request could be read as something else
_CONNECT = 5.0  # seconds for one address, so that an unreachable one leaves time for the next

# The part before the path has no user, escapes, spaces or backslashes: nothing that two parsers could read differently.
_URL = re.compile(
    r"(https?)://(\[[0-9a-f:.]+\]|[^\x00-\x20\x7f-\xa0\"#%/:<>?@\[\\\]^`{|}]+)(?::([0-9]{1,5}))?([/?][!\"$-~]*)?", re.I | re.A
)
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,256}:[ -~]{0,8192}")
_OURS = frozenset({"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "te", "trailer", "upgrade", "expect"})
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

# Addresses that are not on the public internet. `is_global` is true for NAT64, 6to4 and multicast, so this is a separate list.
_INSIDE_4 = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # behind a carrier's NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host agent, on a public address
        "169.254.0.0/16",  # link-local, and the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation, as are 198.51.100.0 and 203.0.113.0
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")  # all else is local, mapped, translated or unassigned
_INSIDE_6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")


class Target(Struct, frozen=True):
    """The parsed target of a URL."""

    scheme: str
    host: str  # in lower case and ASCII, without brackets
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port, which are all that is shown of an address whose path may be a secret."""
        return f"{self.scheme}://{self.authority}"


class Response(Struct, frozen=True):
    """A server's answer. The body is raw: a content encoding is not decoded."""

    status: int
    headers: tuple[tuple[str, str], ...]  # names in lower case
    body: bytes = b""


def parse(url: Any) -> Target:
    """Parse a URL strictly; EgressRefused unless it is a plain http or https address."""
    if not isinstance(url, str) or len(url) > LONGEST or not (match := _URL.fullmatch(url)):
        raise EgressRefused(
            f"{url!r:.120} is not a URL that can be used.",
            hint=f"Write https://host[:port]/path, at most {LONGEST:,} characters, without a user, a fragment or spaces.",
        )
    scheme, host, digits, path = match[1].lower(), match[2], match[3], match[4] or "/"
    port = int(digits) if digits else _PORTS[scheme]
    if not (port in _PORTS.values() or _USER_PORTS <= port < 65_536):
        raise EgressRefused(f"Port {port} is not used for HTTP.", hint="Use 80, 443, or a port from 1,024 to 65,535.")
    return Target(scheme, _host(host), port, path if path.startswith("/") else f"/{path}")


def _host(text: str) -> str:
    """A host in normal form: an address as usually written, or a name in ASCII."""
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1]))
        except ValueError:
            raise _bad_host(text) from None
    host = (text if text.isascii() else _ascii(text)).lower().removesuffix(".")
    if not host or len(host) > 253 or not _NAME.fullmatch(host):
        raise _bad_host(text)
    if _NUMBER.fullmatch(host.rpartition(".")[2]):  # an address: 127.1, 0x7f.1 and 2130706433 are unusual forms of one, and are refused
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise _bad_host(text) from None
    return host


def _ascii(host: str) -> str:
    try:
        import idna

        if len(host) > 253:
            raise _bad_host(host)
        return idna.encode(host, uts46=True).decode()
    except (ImportError, UnicodeError):
        raise _bad_host(host) from None


def _bad_host(text: str) -> EgressRefused:
    return EgressRefused(f"{text!r:.120} is not a host.", hint="Write a host name, or an address in its usual form.")


class Egress:
    """Sends requests to user-supplied hosts, and to none inside the network.

    `allow` names internal networks and hosts that may be reached; `only` names the hosts that may be reached at all.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        only: Iterable[str] | None = None,
        plain_http: bool = False,
        resolve: Resolve | None = None,
        connect: Connect | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        _need_httpcore()
        self._networks, self._hosts = _allowed(allow)
        self._only = None if only is None else frozenset(map(_host, only))
        self._plain_http, self._tls = plain_http, tls
        self._resolve, self._connect = resolve or self._look_up, connect or self._dial
        self._looks: dict[tuple[str, int], Future[Sequence[str]]] = {}
        self._looking = threading.Lock()

    def check(self, url: Any) -> Target:
        """The target of a URL; EgressRefused if it must not be used, as far as that is known without resolving its name."""
        target = parse(url)
        if target.scheme == "http" and not self._plain_http:
            raise EgressRefused(f"{url!r:.120} is not encrypted.", hint="Use https, or allow plain http.", allowed_by="plain_http")
        if self._only is not None and target.host not in self._only:
            raise EgressRefused(
                f"{target.host} is not among the hosts that may be reached.", hint="Use another host, or add this one.", allowed_by="only"
            )
        address = _literal(target.host)
        if address is not None:
            self._checked(target.host, address)
        return target

    async def send(
        self, method: str, url: str, *, timeout: float, headers: Mapping[str, str] | None = None, body: bytes = b"", limit: int = 65_536
    ) -> Response:
        """Send a request, and read at most `limit` bytes of the body. The timeout, in seconds, bounds all of it."""
        body_bytes = bytearray()
        async with self._exchange(method, url, headers or {}, body, timeout) as (answer, chunks):
            while len(body_bytes) < limit and (chunk := await anext(chunks, None)) is not None:
                body_bytes += chunk[: limit - len(body_bytes)]
        return Response(answer.status, answer.headers, bytes(body_bytes))

    async def fetch(self, url: str, *, timeout: float, limit: int, sink: Callable[[bytes], object]) -> Response:
        """Pass the body to `sink` piece by piece, if the status is 200; EgressTooLarge when it has more than `limit` bytes."""
        too_large = EgressTooLarge(f"The answer of {url} has more than {limit:,} bytes.", hint="Offer less, or raise the limit.")
        async with self._exchange("GET", url, {}, b"", timeout) as (answer, chunks):
            if answer.status == 200:
                if _announced(answer) > limit:
                    raise too_large
                async for chunk in chunks:
                    limit -= len(chunk)
                    if limit < 0:
                        raise too_large
                    sink(chunk)
        return answer

    @asynccontextmanager
    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout: float
    ) -> AsyncIterator[tuple[Response, AsyncGenerator[bytes, None]]]:
        """Send a request over a new connection; returns the status and headers of the answer, and its body as it arrives."""
        import httpcore

        target = self.check(url)
        where = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        request = httpcore.Request(method, where, headers=list(_headers(target, headers, body).items()), content=body)
        try:
            async with asyncio.timeout(timeout):
                async with httpcore.AsyncHTTP11Connection(where.origin, await self._open(target)) as connection:
                    response = await connection.handle_async_request(request)
                    async with aclosing(_chunks(response)) as chunks:
                        yield _answer(response), chunks
        except TimeoutError:
            raise EgressTimeout(f"{target.authority} took longer than {timeout:g} s.", hint="Try again later.") from None
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise _failed(target, error) from None

    async def _open(self, target: Target) -> httpcore.AsyncNetworkStream:
        stream = await self._reach(target)
        if target.scheme == "http":
            return stream
        try:
            return await stream.start_tls(self._trust(), server_hostname=target.host)
        except BaseException:
            await stream.aclose()
            raise

    async def _reach(self, target: Target) -> httpcore.AsyncNetworkStream:
        """A connection to the first of the host's addresses that accepts one; none is tried unless all of them are allowed."""
        import httpcore

        problem: Exception = OSError("it has no address")
        for address in await self._addresses(target):
            try:
                async with asyncio.timeout(_CONNECT):
                    return await self._connect(str(address), target.port)
            except (OSError, httpcore.NetworkError) as error:
                problem = error
        raise _failed(target, problem)

    async def _addresses(self, target: Target) -> list[Address]:
        literal = _literal(target.host)
        if literal is not None:
            return [self._checked(target.host, literal)]
        try:
            addresses = await self._resolve(target.host, target.port)
        except OSError as error:
            raise _failed(target, error) from None
        return [self._checked(target.host, _literal(text)) for text in dict.fromkeys(addresses)]

    def _checked(self, host: str, address: Address | None) -> Address:
        """The address to connect to; EgressRefused if it is inside the network and not allowed."""
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if address is None or (host not in self._hosts and not all(map(self._may_be_reached, (address, *_carried(address))))):
            hint = "Use an address on the internet, or allow this one."
            raise EgressRefused(f"{host} is inside the network.", hint=hint, allowed_by="allow")
        return address

    def _may_be_reached(self, address: Address) -> bool:
        return _is_public(address) or any(address in network for network in self._networks)

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        """On a separate thread, shared by all current callers for one host: a dead name server delays neither callers for another
        host nor the exit of the process."""
        with self._looking:
            look = self._looks.get((host, port))
            if look is None:
                look = Future()
                look.set_running_or_notify_cancel()  # a caller that stops waiting does not affect the others
                try:
                    threading.Thread(target=self._ask, args=(host, port, look), name="windlass-resolve", daemon=True).start()
                except RuntimeError as error:
                    raise OSError(f"no thread can be had for the look-up: {error}") from error
                self._looks[host, port] = look
        return await asyncio.wrap_future(look)

    def _ask(self, host: str, port: int, look: Future[Sequence[str]]) -> None:
        try:
            addresses: Sequence[str] | Exception = [str(place[0]) for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except Exception as error:
            addresses = error
        with self._looking:
            del self._looks[host, port]
        if isinstance(addresses, Exception):
            look.set_exception(addresses)
        else:
            look.set_result(addresses)

    async def _dial(self, address: str, port: int) -> httpcore.AsyncNetworkStream:
        import httpcore

        return await httpcore.AnyIOBackend().connect_tcp(address, port)

    def _trust(self) -> ssl.SSLContext:
        import httpcore

        if self._tls is None:
            self._tls = httpcore.default_ssl_context()
        return self._tls


def _need_httpcore() -> None:
    if find_spec("httpcore") is None:
        raise BadInput("Speaking HTTP to others needs httpcore.", hint=install("remote"))


def _allowed(texts: Iterable[str]) -> tuple[tuple[IPv4Network | IPv6Network, ...], frozenset[str]]:
    """Networks and host names, separated."""
    networks, hosts = [], set()
    for text in texts:
        try:
            networks.append(ip_network(text))
        except ValueError:
            hosts.add(_host(text))
    return tuple(networks), frozenset(hosts)


def _literal(host: str) -> Address | None:
    """The address, if the host is an address and not a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _INSIDE_4)
    return address in _PUBLIC_6 and not any(address in network for network in _INSIDE_6)


def _carried(address: Address) -> tuple[Address, ...]:
    """The IPv4 addresses to which a translator or a tunnel would pass it on."""
    if isinstance(address, IPv4Address):
        return ()
    if address in _NAT64:
        return (IPv4Address(int(address) & 0xFFFF_FFFF),)
    return tuple(inner for inner in (address.sixtofour, *(address.teredo or ())) if inner is not None)


def _headers(target: Target, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    lowered = {name.lower(): value for name, value in headers.items()}
    if reserved := sorted(_OURS & lowered.keys()):
        raise BadInput(f"The header {reserved[0]} is not for the caller to set.", hint="Leave it out.")
    for name, value in lowered.items():
        if not _HEADER.fullmatch(f"{name}:{value}"):
            raise BadInput(f"The header {name!r:.80} cannot be sent.", hint="Names and values of headers are printable ASCII.")
    own = {"host": target.authority, "accept-encoding": "identity", "connection": "close", "content-length": str(len(body))}
    return {"accept": "*/*", "user-agent": "windlass"} | lowered | own


def _answer(response: httpcore.Response) -> Response:
    return Response(response.status, tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers))


async def _chunks(response: httpcore.Response) -> AsyncGenerator[bytes, None]:
    assert isinstance(response.stream, AsyncIterable)
    async for chunk in response.stream:
        yield chunk


def _announced(answer: Response) -> int:
    """The declared length of the body; 0 if none is declared."""
    length = dict(answer.headers).get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _failed(target: Target, error: Exception) -> EgressFailed:
    why = str(error) or type(error).__name__
    return EgressFailed(f"Cannot speak to {target.authority}: {why.removesuffix('.')}.", hint="Try again later.")
