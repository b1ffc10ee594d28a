"""The one door to addresses that somebody else has chosen. Nothing here leaves the machine: look-ups and connections are handed in."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpcore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.egress import Egress, Response, parse
from windlass.errors import BadInput, EgressFailed, EgressRefused, EgressTimeout, EgressTooLarge

PATIENCE = 30.0
PUBLIC, OTHER = "93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"

# Addresses inside the network, in the forms that a look-up gives.
INSIDE = [
    "0.0.0.0", "0.0.0.1", "0.255.255.255", "10.0.0.0", "10.0.0.1", "10.255.255.255", "100.64.0.0", "100.100.100.200", "100.127.255.255",
    "127.0.0.0", "127.0.0.1", "127.0.0.53", "127.1.2.3", "127.255.255.255", "168.63.129.16", "169.254.0.1", "169.254.169.254",
    "169.254.170.2", "169.254.255.255", "172.16.0.0", "172.16.0.1", "172.31.255.255", "192.0.0.0", "192.0.0.192", "192.0.0.255",
    "192.0.2.1", "192.88.99.1", "192.168.0.0", "192.168.1.1", "192.168.255.255", "198.18.0.1", "198.19.255.255", "198.51.100.7",
    "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.254", "255.255.255.255",
    "::", "::1", "::2", "::7f00:1", "::127.0.0.1", "::a9fe:a9fe", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:10.0.0.1",
    "::ffff:169.254.169.254", "::ffff:0.0.0.0", "::ffff:224.0.0.1", "::ffff:100.64.0.1", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::10.0.0.1", "64:ff9b::8.8.8.8", "64:ff9b:1::1", "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:ffff::7f00:1", "100::1", "100:0:0:1::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:2::1", "2001:10::1",
    "2001:20::1", "2001:1ff:ffff::1", "2001:db8::1", "2002::1", "2002:7f00:1::", "2002:a9fe:a9fe::", "2002:c0a8:101::1", "2002:808:808::1",
    "3fff::1", "3fff:fff::1", "4000::1", "5f00::1", "8000::1", "fc00::1", "fd00::1", "fd00:ec2::254", "fdff:ffff::1", "fe80::1",
    "fe80::1%eth0", "fe80::1%1", "febf::1", "fec0::1", "feff::1", "ff01::1", "ff02::1", "ff02::fb", "ff05::2", "ff0e::1",
    "0:0:0:0:0:0:0:1", "0:0:0:0:0:ffff:7f00:0001",
]  # fmt: skip

# What people have tried to hide such an address in, and what is no address at all.
HOSTILE = [
    # numbers that some readers take for an address
    "http://2130706433/", "http://017700000001/", "http://0x7f000001/", "http://0x7f.0x0.0x0.0x1/", "http://0177.0.0.1/", "http://127.1/",
    "http://127.0.1/", "http://0/", "http://00000000/", "http://0x0/", "http://0x/", "http://127.0.0.1.", "http://127.1./", "http://127.0.0.01/",
    "http://0127.0.0.1/", "http://127.0.0.0x1/", "http://3232235777/", "http://2852039166/", "http://0xa9fea9fe/", "http://0251.0376.0251.0376/",
    "http://425.510.425.510/", "http://4294967296/", "http://18446744073709551616/", "http://256.256.256.256/", "http://1.2.3.4.5/",
    "http://169.254.43518/", "http://169.16689662/", "http://0xa9.254.0251.254/", "http://127.0.0.1..", "http://.127.0.0.1/",
    "http://a.127.0.0.1.2/", "http://example.0x7f/", "http://0x1/", "http://example.123/",
    # other scripts that become digits and dots
    "http://①②⑦.⓪.⓪.①/", "http://１２７.０.０.１/", "http://127。0。0。1/", "http://127．0．0．1/", "http://127｡0｡0｡1/", "http://١٢٧.0.0.1/",
    "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/", "http://ｌocalhost/", "http://loc\u00adalhost/", "http://localhost\u3002/", "http://[\u200b::1]/",
    # names that lead inside
    "http://localhost/", "http://LOCALHOST/", "http://localhost./", "http://localhost:8080/", "http://localhost:80/", "http://sub.localhost/",
    "http://intranet/", "http://metadata.google.internal/", "http://127.0.0.1.nip.io/", "http://mixed.example/", "http://mixed6.example/",
    "http://second.example/", "http://garbage.example/", "https://localhost/", "https://intranet/x?y",
    # users, passwords and other confusion before the host
    "http://user@127.0.0.1/", "http://user:pass@localhost/", "http://public.example@127.0.0.1/", "http://127.0.0.1@public.example/",
    "http://public.example:80@127.0.0.1/", "http://@127.0.0.1/", "http://:@127.0.0.1/", "http://public.example%40127.0.0.1/",
    "http://public.example\\@127.0.0.1/", "http://127.0.0.1\\@public.example/", "http://public.example#@127.0.0.1/",
    "http://127.0.0.1#@public.example/", "http://public.example\\?@127.0.0.1/", "http://a:b:c@localhost/",
    "http://127.0.0.1:80:80/", "http://public.example:80@/", "http://@/", "http://:80/", "http:///", "http://", "http:/127.0.0.1/",
    "http:127.0.0.1", "http:////127.0.0.1/", "//127.0.0.1/", "127.0.0.1", "localhost", "/etc/passwd", "", " ", "http", "http:", "://x",
    # brackets
    "http://[::1]/", "http://[::]/", "http://[0:0:0:0:0:0:0:1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/", "http://[64:ff9b::a9fe:a9fe]/", "http://[2002:7f00:1::]/", "http://[fe80::1]/", "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/", "http://[::1%25lo]/", "http://[fd00:ec2::254]/", "http://[ff02::1]/", "http://[::1", "http://::1/", "http://[]/",
    "http://[127.0.0.1]/", "http://[localhost]/", "http://[::1]extra/", "http://[v1.x]/", "http://[::1].example/", "http://x[::1]/",
    "http://[::ffff:169.254.169.254]:80/", "http://[0000:0000:0000:0000:0000:ffff:0a00:0001]/", "http://[[::1]]/", "http://[::1]:/",
    # white space, control characters, escapes
    "http://127.0.0.1 /", " http://localhost/", "http://localhost/ ", "http://local\thost/", "http://local\nhost/",
    "http://localhost/\r\nX: y",
    "http://public.example/\r\nHost: localhost", "http://public.example/a b", "http://public.example/\x00", "http://public.example\x00.localhost/",
    "http://public.example/\x7f", "http://%31%32%37.0.0.1/", "http://127%2e0%2e0%2e1/", "http://localhost%00.example/", "http://local%0ahost/",
    "http://public.example/é", "http://public.example/\u2028", "ht\ttp://localhost/", "\x00http://localhost/", "http\x00://localhost/",
    "http://public.example/\ud800", "http://\ud800.example/", "http://public.example/#fragment", "http://public\u2028.example/",
    # not HTTP
    "file:///etc/passwd", "file://localhost/etc/passwd", "ftp://localhost/", "gopher://localhost:6379/_x", "dict://localhost:11211/",
    "ldap://localhost/", "unix:///var/run/docker.sock", "http+unix://%2fvar%2frun%2fdocker.sock/", "jar:http://localhost!/", "data:,x",
    "javascript:alert(1)", "ws://localhost/", "wss://localhost/", "tftp://localhost/", "mailto:a@b", "about:blank", "httpss://localhost/", "httpſ://localhost/",
    "https:localhost", "url:http://localhost/", "view-source:http://localhost/", "netdoc:///etc/passwd", "sftp://localhost/",
    # ports
    "http://public.example:0/", "http://public.example:22/", "http://public.example:25/", "http://public.example:6/", "http://public.example:65536/",
    "http://public.example:99999/", "http://public.example:-1/", "http://public.example:+80/", "http://public.example:８０/",
    "http://public.example:0x50/", "http://public.example:8 0/", "http://public.example:000000080/", "http://public.example:/", "http://public.example:١/",
    # names that are none
    "http://-a.example/", "http://a-.example/", "http://a..example/", "http://.example/", "http://a_b.exam ple/",
    "http://" + "a" * 64 + ".example/",
    "http://" + "a." * 127 + "a" * 10 + "/", "http://" + "é" * 300 + "/", "http://*/", "http://a,b/", "http://$HOME/", "http://'/", "http://(x)/",
    "http://public.example/" + "a" * 2_048,
]  # fmt: skip

NAMES = {
    "public.example": [PUBLIC, OTHER],
    "localhost": ["127.0.0.1", "::1"],
    "sub.localhost": ["127.0.0.1"],
    "intranet": ["10.1.2.3"],
    "metadata.google.internal": ["169.254.169.254"],
    "127.0.0.1.nip.io": ["127.0.0.1"],
    "mixed.example": [PUBLIC, "192.168.0.1"],  # one way in is enough to refuse it
    "mixed6.example": [PUBLIC, "fd00::1"],
    "second.example": [OTHER, "::ffff:10.0.0.1"],
}


class Net:
    """Look-ups from a table, and connections that are only written down."""

    def __init__(self, names: Mapping[str, Sequence[str]] = NAMES) -> None:
        self.names, self.asked = names, list[str]()
        self.reached: list[tuple[str, int]] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.names:
            raise OSError(-2, "Name or service not known")
        return self.names[host]

    async def connect(self, address: str, port: int) -> httpcore.AsyncNetworkStream:
        self.reached.append((address, port))
        raise ConnectionRefusedError("written down")

    def egress(self, **how: Any) -> Egress:
        settings: dict[str, Any] = {"plain_http": True, "resolve": self.resolve, "connect": self.connect} | how
        return Egress(**settings)


def sent(egress: Egress, url: str, method: str = "GET", **how: Any) -> Response:
    return asyncio.run(egress.send(method, url, **{"timeout": PATIENCE} | how))


# Where nothing gets through


def test_the_corpus_is_large_and_says_nothing_twice() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 150
    assert len(set(INSIDE)) == len(INSIDE) >= 80


@pytest.mark.parametrize("url", HOSTILE, ids=ascii)
def test_no_hostile_url_reaches_anything(url: str) -> None:
    net = Net()
    with pytest.raises((EgressRefused, EgressFailed)) as refusal:
        sent(net.egress(), url)
    assert net.reached == []
    assert isinstance(refusal.value, EgressRefused) or "not known" in str(refusal.value)


@pytest.mark.parametrize("address", INSIDE)
def test_a_name_that_leads_inside_is_refused(address: str) -> None:
    for found in ([address], [PUBLIC, address], [address, OTHER]):
        net = Net({"hooks.example": found})
        with pytest.raises(EgressRefused, match="inside the network"):
            sent(net.egress(), "http://hooks.example/")
        assert net.reached == []


@pytest.mark.parametrize("address", [address for address in INSIDE if "%" not in address])
def test_an_address_inside_is_refused_without_a_look_up(address: str) -> None:
    net = Net()
    host = f"[{address}]" if ":" in address else address
    for act in (lambda: sent(net.egress(), f"http://{host}/"), lambda: net.egress().check(f"http://{host}:8080/x")):
        with pytest.raises(EgressRefused, match="inside the network"):
            act()
    assert not net.reached
    assert not net.asked


def test_what_a_resolver_says_that_is_no_address_is_refused() -> None:
    net = Net({"hooks.example": ["not-an-address"]})
    with pytest.raises(EgressRefused):
        sent(net.egress(), "http://hooks.example/")
    assert net.reached == []


@pytest.mark.parametrize("url", [None, 7, b"http://public.example/", ["http://public.example/"]])
def test_what_is_no_text_is_refused(url: Any) -> None:
    with pytest.raises(EgressRefused):
        parse(url)


@given(st.text(max_size=60) | st.text(alphabet="htps:/.[]@#?%\\01fx:7 \t-_é。①", max_size=40).map("http://".__add__))
@settings(max_examples=500, deadline=None)
def test_any_text_is_read_or_refused_and_what_is_read_says_it_again(text: str) -> None:
    try:
        target = parse(text)
    except EgressRefused:
        return
    assert parse(f"{target.scheme}://{target.authority}{target.path}") == target


# Where something does


@pytest.mark.parametrize(
    ("url", "reached", "host"),
    [
        ("http://public.example", (PUBLIC, 80), "public.example"),
        ("http://PUBLIC.example./a?b=c%20d", (PUBLIC, 80), "public.example"),
        ("http://public.example:8080/?x=[1]", (PUBLIC, 8080), "public.example:8080"),
        ("HTTP://public.example:443/", (PUBLIC, 443), "public.example:443"),
        ("https://public.example/", (PUBLIC, 443), "public.example"),
        ("https://public.example?x", (PUBLIC, 443), "public.example"),
        (f"http://{PUBLIC}/", (PUBLIC, 80), PUBLIC),
        (f"http://[{OTHER}]:8080/", (OTHER, 8080), f"[{OTHER}]:8080"),
        (f"http://[::ffff:{PUBLIC}]/", (PUBLIC, 80), "[::ffff:5db8:d822]"),
        ("http://bücher.example/", (PUBLIC, 80), "xn--bcher-kva.example"),
        ("http://a_b.example/", (PUBLIC, 80), "a_b.example"),
    ],
)
def test_an_address_on_the_internet_is_reached(url: str, reached: tuple[str, int], host: str) -> None:
    net = Net({"public.example": [PUBLIC], "xn--bcher-kva.example": [PUBLIC], "a_b.example": [PUBLIC]})
    with pytest.raises(EgressFailed, match="written down"):
        sent(net.egress(), url)
    assert net.reached == [reached]
    assert parse(url).authority.replace("::ffff:93.184.216.34", "::ffff:5db8:d822") == host


def test_every_address_is_tried_and_each_once() -> None:
    net = Net({"public.example": [OTHER, PUBLIC, OTHER]})
    with pytest.raises(EgressFailed):
        sent(net.egress(), "http://public.example/")
    assert net.reached == [(OTHER, 80), (PUBLIC, 80)]


def test_a_name_without_addresses_is_a_failure() -> None:
    with pytest.raises(EgressFailed, match="no address"):
        sent(Net({"public.example": []}).egress(), "http://public.example/")


def test_plain_http_is_refused_unless_allowed() -> None:
    net = Net()
    with pytest.raises(EgressRefused, match="not encrypted"):
        sent(net.egress(plain_http=False), "http://public.example/")
    assert not net.reached
    assert not net.asked


def test_only_the_hosts_that_are_named_are_reached() -> None:
    net = Net({**NAMES, "evil.example": [PUBLIC], "x.public.example": [PUBLIC]})
    egress = net.egress(only=["Public.example.", PUBLIC])
    for url in ("http://evil.example/", "http://x.public.example/", "http://public.example.evil.example/", f"http://[{OTHER}]/"):
        with pytest.raises(EgressRefused, match="not among the hosts"):
            sent(egress, url)
    assert not net.reached
    assert not net.asked
    for url in ("http://PUBLIC.example/", f"http://{PUBLIC}/"):
        with pytest.raises(EgressFailed):
            sent(egress, url)
    assert (PUBLIC, 80) in net.reached


def test_a_named_host_is_checked_all_the_same() -> None:
    net = Net()
    with pytest.raises(EgressRefused, match="inside"):
        sent(net.egress(only=["intranet"]), "http://intranet/")
    assert net.reached == []


@pytest.mark.parametrize(
    ("allow", "url", "reached"),
    [
        ("10.0.0.0/8", "http://intranet/", "10.1.2.3"),
        ("10.1.2.3", "http://intranet/", "10.1.2.3"),
        ("intranet", "http://INTRANET./", "10.1.2.3"),
        ("127.0.0.0/8", "http://[::ffff:127.0.0.1]/", "127.0.0.1"),
        ("fd00::/8", "http://[fd00::1]/", "fd00::1"),
        ("64:ff9b::/96", "http://[64:ff9b::5db8:d822]/", "64:ff9b::5db8:d822"),
    ],
)
def test_what_is_allowed_is_reached(allow: str, url: str, reached: str) -> None:
    net = Net()
    with pytest.raises(EgressFailed, match="written down"):
        sent(net.egress(allow=[allow]), url)
    assert net.reached == [(reached, 80)]


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("10.1.2.4", "http://intranet/"),
        ("intranet", "http://10.1.2.3/"),
        ("127.0.0.0/8", "http://localhost/"),  # which is ::1 as well
        ("64:ff9b::/96", "http://[64:ff9b::a9fe:a9fe]/"),  # a translator would pass it on
        ("2002::/16", "http://[2002:7f00:1::]/"),
        ("2001::/32", "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/"),
    ],
)
def test_what_is_not_allowed_stays_refused(allow: str, url: str) -> None:
    net = Net()
    with pytest.raises(EgressRefused, match="inside"):
        sent(net.egress(allow=[allow]), url)
    assert net.reached == []


@pytest.mark.parametrize("text", ["10.0.0.1/8", "a b", "http://x/", "", "300.1.1.1"])
def test_an_allowance_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(BadInput):
        Egress(allow=[text])


@pytest.mark.parametrize(
    "headers", [{"Host": "x"}, {"content-length": "3"}, {"Transfer-Encoding": "chunked"}, {"a\nb": "c"}, {"a": "b\r\nc: d"}, {"a": "é"}]
)
def test_headers_cannot_change_what_is_asked(headers: dict[str, str]) -> None:
    net = Net()
    with pytest.raises(BadInput):
        sent(net.egress(), "http://public.example/", headers=headers)
    assert net.reached == []


# The connection goes to the address that was checked


class Turncoat(Net):
    """A name that is public when it is looked up first, and inside ever after."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return [PUBLIC] if len(self.asked) == 1 else ["127.0.0.1"]


def test_a_name_that_changes_between_look_and_connection_gains_nothing() -> None:
    net = Turncoat()
    egress = net.egress()
    with pytest.raises(EgressFailed):
        sent(egress, "http://rebind.example/")
    assert (net.asked, net.reached) == (["rebind.example"], [(PUBLIC, 80)])  # one look, and what was seen then


def test_every_connection_is_checked_anew() -> None:
    net = Turncoat()
    egress = net.egress()
    with pytest.raises(EgressFailed):
        sent(egress, "http://rebind.example/")
    for _ in range(3):
        with pytest.raises(EgressRefused):
            sent(egress, "http://rebind.example/")
    assert net.reached == [(PUBLIC, 80)]


def test_the_system_is_asked_when_nobody_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver that is used in earnest, with a connector that only writes down."""
    asked: list[tuple[Any, ...]] = []

    def getaddrinfo(host: str, port: int, **how: Any) -> list[Any]:
        asked.append((host, port))
        return [(2, 1, 6, "", ("127.0.0.1", port)), (10, 1, 6, "", ("::1", port, 0, 0))]

    net = Net()
    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    with pytest.raises(EgressRefused):
        sent(Egress(plain_http=True, connect=net.connect), "http://public.example/")
    assert (asked, net.reached) == ([("public.example", 80)], [])


def test_a_name_server_that_does_not_answer_holds_up_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = Counter[str](), threading.Event()
    threads: set[threading.Thread] = set()

    def getaddrinfo(host: str, port: int, **how: Any) -> list[Any]:
        asked[host] += 1
        threads.add(threading.current_thread())
        if host.startswith("dead"):
            assert go_on.wait(60)
        return [(2, 1, 6, "", (PUBLIC, port))]

    net = Net()
    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    egress = Egress(plain_http=True, connect=net.connect)

    async def work() -> None:
        late = [asyncio.create_task(egress.send("GET", f"http://dead{n % 20}.example/", timeout=0.2)) for n in range(80)]
        for answer in await asyncio.gather(*late, return_exceptions=True):
            assert isinstance(answer, EgressTimeout)
        with pytest.raises(EgressFailed):  # it was reached, where nobody answers
            await egress.send("GET", "http://alive.example/", timeout=30)

    try:
        asyncio.run(work())
    finally:
        go_on.set()
    assert net.reached == [(PUBLIC, 80)]
    assert asked == Counter({f"dead{n}.example": 1 for n in range(20)}) + Counter({"alive.example": 1})  # one look-up for all who ask
    assert all(thread.daemon for thread in threads)  # no process waits for them


# Real servers, on loopback

Handle = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A server on loopback that answers as it is told, and remembers what it was asked."""

    def __init__(self, handle: Handle, tls: ssl.SSLContext | None = None) -> None:
        self._handle, self._tls = handle, tls
        self.asked: list[bytes] = []
        self.sent = 0
        self.cut = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            request = head + await reader.readexactly(length)
            self.asked.append(request)
            await self._handle(request, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            self.cut.set()
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        async with server:
            yield server.sockets[0].getsockname()[1]


def answering(*parts: bytes) -> Handle:
    async def handle(request: bytes, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)

    return handle


LOOPBACK: dict[str, Any] = {"allow": ("127.0.0.0/8",), "plain_http": True}


def exchanged(handle: Handle, act: Callable[[Egress, str], Awaitable[Any]], **how: Any) -> tuple[Any, Server]:
    """What an act on a real server brings, and the server."""

    async def main() -> tuple[Any, Server]:
        server = Server(handle)
        async with server.running() as port:
            return await act(Egress(**LOOPBACK | how), f"http://127.0.0.1:{port}/hook?x=1"), server

    return asyncio.run(main())


def test_a_request_arrives_as_it_was_meant_and_so_does_the_answer() -> None:
    handle = answering(b"HTTP/1.1 202 Fine\r\nX-One: 1\r\nContent-Length: 5\r\n\r\nhello")
    answer, server = exchanged(
        handle, lambda egress, url: egress.send("POST", url, headers={"X-Sign": "abc"}, body=b"{}", timeout=PATIENCE, limit=3)
    )
    assert answer == Response(202, (("x-one", "1"), ("content-length", "5")), b"hel")
    head, body = server.asked[0].split(b"\r\n\r\n")
    lines = head.decode().lower().splitlines()
    assert lines[0] == "post /hook?x=1 http/1.1"
    assert {"x-sign: abc", "connection: close", "content-length: 2", "accept-encoding: identity"} <= set(lines)
    assert body == b"{}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_answer_and_not_followed(status: int) -> None:
    handle = answering(f"HTTP/1.1 {status} Go\r\nLocation: http://127.0.0.1:1/inside\r\nContent-Length: 0\r\n\r\n".encode())
    net = Net()

    async def act(egress: Egress, url: str) -> tuple[Response, Response]:
        pieces: list[bytes] = []
        answers = await egress.send("POST", url, timeout=PATIENCE), await egress.fetch(url, timeout=PATIENCE, limit=10, sink=pieces.append)
        assert pieces == []
        return answers

    answers, server = exchanged(handle, act)
    assert [answer.status for answer in answers] == [status, status]
    assert len(server.asked) == 2
    assert net.reached == []


def test_a_huge_body_is_cut_off() -> None:
    async def pour(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            poured[0] += 65_536
            writer.write(bytes(65_536))
            await writer.drain()

    poured = [0]

    async def act(egress: Egress, url: str) -> Response:
        return await egress.send("GET", url, timeout=PATIENCE, limit=65_536)

    answer, _ = exchanged(pour, act)
    assert len(answer.body) == 65_536
    assert poured[0] < 32 * 2**20  # what the sockets took before they were closed


def test_a_compressed_body_stays_compressed() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    handle = answering(f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode(), bomb)
    answer, _ = exchanged(handle, lambda egress, url: egress.send("GET", url, timeout=PATIENCE))
    assert answer.body == bomb


def test_headers_without_end_are_refused() -> None:
    async def pour(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        for n in range(1_000_000):
            writer.write(b"X-%d: %d\r\n" % (n, n))
            if n % 1_000 == 0:
                await writer.drain()

    async def act(egress: Egress, url: str) -> None:
        with pytest.raises(EgressFailed):
            await egress.send("GET", url, timeout=PATIENCE)

    exchanged(pour, act)


@pytest.mark.parametrize(
    "start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
def test_a_slow_drip_ends_with_the_time(start: bytes) -> None:
    async def drip(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(
                b"HTTP/1.1 100 Continue\r\n\r\n"
                if b" 100 " in start
                else b"X-a: b\r\n"
                if start.endswith(b"OK\r\n")
                else b"H"
                if start
                else b""
            )
            await writer.drain()
            await asyncio.sleep(0.02)

    async def act(egress: Egress, url: str) -> None:
        with pytest.raises(EgressTimeout):
            await egress.send("GET", url, timeout=0.5)

    exchanged(drip, act)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"\x16\x03\x01",
    ],
)
def test_a_server_that_does_not_speak_http_is_a_failure(answer: bytes) -> None:
    async def act(egress: Egress, url: str) -> None:
        with pytest.raises(EgressFailed):
            await egress.send("GET", url, timeout=PATIENCE)

    exchanged(answering(answer), act)


def test_nobody_there_is_a_failure() -> None:
    async def main() -> None:
        async with Server(answering(b"")).running() as port:
            pass
        with pytest.raises(EgressFailed, match="Cannot speak to 127"):
            await Egress(**LOOPBACK).send("GET", f"http://127.0.0.1:{port}/", timeout=PATIENCE)

    asyncio.run(main())


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    handle = answering(b"HTTP/1.1 204 None\r\n\r\n")
    answer, server = exchanged(handle, lambda egress, url: egress.send("GET", url, timeout=PATIENCE))
    assert answer.status == 204
    assert len(server.asked) == 1


# Downloads


def test_a_download_arrives_in_pieces() -> None:
    content = bytes(range(256)) * 4_000
    pieces: list[bytes] = []
    handle = answering(f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode(), content)
    answer, _ = exchanged(handle, lambda egress, url: egress.fetch(url, timeout=PATIENCE, limit=len(content), sink=pieces.append))
    assert answer.status == 200
    assert b"".join(pieces) == content
    assert len(pieces) > 1


@pytest.mark.parametrize("announced", [True, False])
def test_a_download_that_is_too_large_is_refused(announced: bool) -> None:
    head = b"Content-Length: 1000001\r\n" if announced else b""
    pieces: list[bytes] = []

    async def act(egress: Egress, url: str) -> None:
        with pytest.raises(EgressTooLarge, match="1,000,000 bytes"):
            await egress.fetch(url, timeout=PATIENCE, limit=1_000_000, sink=pieces.append)

    exchanged(answering(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n", bytes(1_000_001)), act)
    assert sum(map(len, pieces)) <= 1_000_000
    assert not (announced and pieces)


def test_a_download_that_ends_early_is_a_failure() -> None:
    async def act(egress: Egress, url: str) -> None:
        with pytest.raises(EgressFailed):
            await egress.fetch(url, timeout=PATIENCE, limit=100, sink=lambda data: None)

    exchanged(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nonly this"), act)


def test_what_the_sink_raises_comes_through() -> None:
    def full(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def act(egress: Egress, url: str) -> None:
        with pytest.raises(OSError, match="No space"):
            await egress.fetch(url, timeout=PATIENCE, limit=100, sink=full)

    exchanged(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"), act)


# Encryption


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for hooks.example, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    file = tmp_path_factory.mktemp("tls") / "hooks.pem"
    name = ["-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        *name,
        "-keyout",
        str(file),
        "-out",
        str(file) + ".crt",
    ]
    subprocess.run(command, check=True, capture_output=True)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


@pytest.mark.parametrize(
    ("host", "trusted", "passes"), [("hooks.example", True, True), ("other.example", True, False), ("hooks.example", False, False)]
)
def test_the_certificate_must_be_that_of_the_host(certificate: Path, host: str, trusted: bool, passes: bool) -> None:
    """The connection goes to an address, and what is verified is the name."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(certificate)
    ours = ssl.create_default_context(cafile=f"{certificate}.crt" if trusted else None)

    async def main() -> None:
        async def dial(address: str, port: int) -> httpcore.AsyncNetworkStream:
            assert (address, port) == (PUBLIC, 443)
            return await httpcore.AnyIOBackend().connect_tcp("127.0.0.1", here)

        server = Server(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), theirs)
        async with server.running() as here:
            egress = Egress(resolve=Net({host: [PUBLIC]}).resolve, connect=dial, tls=ours)
            if passes:
                assert (await egress.send("GET", f"https://{host}/", timeout=PATIENCE)).body == b"ok"
            else:
                with pytest.raises(EgressFailed, match=r"(?i)certificate"):
                    await egress.send("GET", f"https://{host}/", timeout=PATIENCE)
                assert server.asked == []

    asyncio.run(main())


def test_without_httpcore_there_is_a_word_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.egress.find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install"):
        Egress()


def test_windlass_does_without_httpcore_until_it_is_needed() -> None:
    code = "import sys, windlass, windlass.engine, windlass.egress; assert 'httpcore' not in sys.modules and 'idna' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
