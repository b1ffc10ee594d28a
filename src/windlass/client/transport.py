"""Sends requests to a hub: on the caller's thread, or in an event loop. Only this file uses httpx."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple, NoReturn, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

from windlass.clock import nap
from windlass.errors import BadInput, HubFailed, HubUnreachable, OutcomeUnknown
from windlass.extras import install
from windlass.store.base import check_process

try:
    import httpx
except ImportError as error:
    raise ImportError(f"Speaking to a hub needs httpx. {install('remote')}", name="httpx") from error

CONNECT = 10.0  # seconds until a hub that does not accept the connection counts as unreachable
SILENCE, PROBES = 5, 3
"""Seconds of silence after which a connection is probed, and how often: a dead one is noticed while waiting for an answer."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)
_READING = threading.Lock()  # OpenSSL can crash where several threads read certificates at once


class ClientRequest(NamedTuple):
    """A request to a hub."""

    method: str
    path: str
    timeout: float  # seconds
    query: Mapping[str, str | int] | None = None
    body: bytes | None = None  # JSON
    headers: Mapping[str, str] | None = None


class HubResponse(NamedTuple):
    """A hub's answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """A connection to a hub. A blocking one never suspends."""

    async def send(self, request: ClientRequest) -> HubResponse:
        """The answer. Raises HubUnreachable when nothing was sent, and OutcomeUnknown when it may have been."""

    def stream(self, request: ClientRequest) -> AsyncIterator[bytes]:
        """The parts of a streamed answer; raises Refused with an answer that is not a stream, and otherwise as `send` does."""

    async def pause(self, seconds: float) -> None:
        """Let time pass."""

    async def close(self) -> None:
        """Close the connections."""


class NotAStream(Exception):
    """The answer is not a stream."""

    def __init__(self, answer: HubResponse) -> None:
        super().__init__(answer.status)
        self.answer = answer


def checked_url(url: str) -> str:
    """A hub's address without its last slash, if it is one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        raise BadInput("The address of the hub cannot be read.", hint="Write it as https://hub.example.com or http://127.0.0.1:8080.")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise BadInput(
            "The address of the hub has more than a scheme, a host and a path.",
            hint="Give the token as WINDLASS_HUB_TOKEN, not in the address.",
        )
    return url.rstrip("/")


def _headers(token: str | None) -> dict[str, str]:
    if token is not None and (not token.isascii() or not token.isprintable() or " " in token):
        raise BadInput("The token of the hub has characters that no token has.", hint="Copy it anew; `windlass tokens` makes one.")
    return {"user-agent": "windlass"} | ({"authorization": f"Bearer {token}"} if token else {})


def _options() -> list[tuple[int, int, int]]:
    """Socket options, by which a connection whose other end is gone without notice is detected."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    known = (("TCP_KEEPIDLE", SILENCE), ("TCP_KEEPALIVE", SILENCE), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", PROBES))
    options += [(socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in known if hasattr(socket, name)]
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        options.append((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (SILENCE + 2 * PROBES)))
    return options


class _Common:
    """Shared by both transports: address, token, and the meaning of errors."""

    def __init__(self, url: str, token: str | None, ca_file: str | None) -> None:
        self.url, self._opened_by = checked_url(url), os.getpid()
        self._how: dict[str, Any] = {"headers": _headers(token), "follow_redirects": False, "verify": self._verified(ca_file)}
        # httpx uses a proxy that the environment names, and then the proxy keeps the connection to the hub alive.
        self._own = not getproxies()
        # No bound for idle ones: httpx closes a surplus one that another thread has been given and does not use yet.
        self._limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60.0)

    def _verified(self, ca_file: str | None) -> ssl.SSLContext:
        """Certificates are always verified: by this file, or SSL_CERT_FILE, or those that httpx ships. Plain HTTP reads none."""
        if ca_file is None and urlsplit(self.url).scheme == "http":
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            with _READING:
                return httpx.create_ssl_context() if ca_file is None else ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            source = ca_file or "SSL_CERT_FILE, SSL_CERT_DIR or those of httpx"
            raise BadInput(f"Cannot read certificates from {source}: {error}.", hint="Name a file of PEM certificates.") from None

    def _words(self, request: ClientRequest) -> dict[str, Any]:
        """A request as httpx takes it."""
        check_process(self._opened_by)
        method, path, seconds, query, body, headers = request
        if body is not None:
            headers = {**(headers or {}), "content-type": "application/json"}
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT))
        return {"method": method, "url": self.url + path, "params": query, "content": body, "headers": headers, "timeout": timeout}

    def _failed(self, error: httpx.HTTPError | httpx.InvalidURL) -> NoReturn:
        message = str(error).rstrip(".") or type(error).__name__
        if isinstance(error, _NOT_SENT):
            hint = "Check the address, and whether the hub runs."
            if "CERTIFICATE" in message:
                hint = "Its certificate is not trusted here: name its authority by ca_file or SSL_CERT_FILE."
            raise HubUnreachable(f"The hub at {self.url} cannot be reached: {message}.", hint=hint) from error
        if isinstance(error, httpx.TransportError):
            raise OutcomeUnknown(
                f"The answer of the hub at {self.url} was lost: {message}.",
                hint="It may or may not have happened: check before you repeat it.",
            ) from error
        raise HubFailed(f"The hub at {self.url} does not answer as one: {message}.", hint="Check the address.") from error


class BlockingTransport(_Common):
    """On the caller's thread; its coroutines never suspend. Threads may share it."""

    def __init__(self, url: str, *, token: str | None = None, ca_file: str | None = None) -> None:
        super().__init__(url, token, ca_file)
        transport = httpx.HTTPTransport(verify=self._how["verify"], limits=self._limits, socket_options=_options()) if self._own else None
        self._http = httpx.Client(**self._how, transport=transport, limits=self._limits)

    async def send(self, request: ClientRequest) -> HubResponse:
        try:
            answer = self._http.request(**self._words(request))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._failed(error)
        return HubResponse(answer.status_code, answer.headers, answer.content)

    async def stream(self, request: ClientRequest) -> AsyncIterator[bytes]:
        try:
            with self._http.stream(**self._words(request)) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise NotAStream(HubResponse(answer.status_code, answer.headers, answer.read()))
                for part in answer.iter_bytes():
                    yield part
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._failed(error)

    async def pause(self, seconds: float) -> None:
        nap(seconds)

    async def close(self) -> None:
        self._http.close()


class AsyncTransport(_Common):
    """In the event loop that runs when it is first used."""

    def __init__(self, url: str, *, token: str | None = None, ca_file: str | None = None) -> None:
        super().__init__(url, token, ca_file)
        options = {"verify": self._how["verify"], "limits": self._limits, "socket_options": _options()}
        transport = httpx.AsyncHTTPTransport(**options) if self._own else None
        self._http = httpx.AsyncClient(**self._how, transport=transport, limits=self._limits)

    async def send(self, request: ClientRequest) -> HubResponse:
        try:
            answer = await self._http.request(**self._words(request))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._failed(error)
        return HubResponse(answer.status_code, answer.headers, answer.content)

    async def stream(self, request: ClientRequest) -> AsyncIterator[bytes]:
        try:
            async with self._http.stream(**self._words(request)) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise NotAStream(HubResponse(answer.status_code, answer.headers, await answer.aread()))
                async for part in answer.aiter_bytes():
                    yield part
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._failed(error)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()
