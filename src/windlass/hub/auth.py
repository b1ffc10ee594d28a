"""The gate: who asks, and whether they may. Every request passes it, so the usual case is one look into a dictionary."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

from windlass.api.rows import ANY, Verb
from windlass.clock import Clock
from windlass.engine import Engine
from windlass.errors import BadInput, Forbidden, LimitReached, NotJson, Unauthorized
from windlass.machine import LIVE
from windlass.model import SCOPES, Principal, Run, Token

if TYPE_CHECKING:
    from windlass.hub.core import HubSettings

_LOG = logging.getLogger("windlass.hub")

Scope = MutableMapping[str, Any]
Headers = Mapping[bytes, bytes]

FRESH = 1_000
"""Milliseconds for which what the store said of a token is believed: the longest that a revoked one is still good on another hub."""
REMEMBERED = 10_000
"""Tokens, and addresses with wrong ones, that are remembered at most."""
FAILURES, PERIOD = 30, 60_000
"""Wrong tokens from one address within so many milliseconds, after which it is told to wait."""

_READS = {"GET", "HEAD", "OPTIONS"}
_IN_QUERY = re.compile(rb"(?:^|&)(?:access_)?token=|wli?_[A-Za-z0-9_-]{44}")
_EVERYTHING = frozenset(SCOPES)
_HANDED_ON = {b"forwarded", b"via", b"x-real-ip"}


class Caller(NamedTuple):
    """Who asks, and what they may do."""

    who: str
    scopes: frozenset[str]
    token: Token | None = None

    @property
    def principal(self) -> Principal:
        """On whose behalf they ask."""
        return Principal(self.who if self.token is None else self.token.principal, trusted=_may(self, "admin"))

    def may(self, scope: str) -> bool:
        """Whether they have a scope."""
        return _may(self, scope)

    def check_scope(self, scope: str) -> None:
        """Refuse what only a wider scope may do."""
        if not _may(self, scope):
            raise Forbidden(f"This needs the scope {scope}.", hint="Use a token that has it; `windlass tokens list` tells.")

    def check_worker(self, name: str) -> None:
        """Refuse to act as a worker that the token is not for: its own name, or one that begins with it and a dot."""
        own = self.token and self.token.worker
        if own is not None and name != own and not name.startswith(f"{own}."):
            raise Forbidden(
                f"This token is for the worker {own!r}, not for {name!r:.80}.",
                hint="Start the worker under that name, or with a token of its own.",
            )

    def check_holds(self, run: Run) -> None:
        """Refuse what is only for the worker that has a run."""
        if run.worker is None or run.state not in LIVE:
            raise Forbidden("No worker has this run, so it is for those who may read.", hint="Use a token with the scope read.")
        self.check_worker(run.worker)

    @property
    def stands_for_worker(self) -> bool:
        """Whether what it says of the workers it may act as is believed: its token is for them alone, or may do everything."""
        return self.token is None or self.token.worker is not None or _may(self, "admin")


ANONYMOUS = Caller("anonymous", _EVERYTHING)
"""Everybody, where there is no token at all."""
NOBODY = Caller("nobody", frozenset())


class _Known(NamedTuple):
    caller: Caller
    token: Token
    until: int  # on the monotonic clock


class Gate:
    """Lets in who may."""

    def __init__(self, engine: Engine, clock: Clock, settings: HubSettings) -> None:
        self.engine, self.clock = engine, clock
        self.failures = Failures(clock)
        self._may_be_open = settings.open and is_loopback(settings.host)
        self._open_until = 0
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._changes = 0

    def forget(self) -> None:
        """A token was made or ended here: it counts from the next request on."""
        self._known.clear()
        self._open_until = 0
        self._changes += 1

    async def admit(self, scope: Scope, verb: Verb) -> Caller:
        """The caller, if the verb is for them; the scope then has them too."""
        query, method, wanted = scope["query_string"], scope["method"], verb.scope
        headers: Headers = dict(scope["headers"])
        if query and _IN_QUERY.search(query):
            raise Unauthorized(
                "A token must not be in an address.", hint="Send it as a header, and make another: addresses are kept in logs."
            )
        bearer = headers.get(b"authorization")
        if wanted is None:
            caller = NOBODY
        elif bearer is not None:
            caller = await self._by_token(bearer, scope)
        elif await self._is_open(scope, headers):
            caller = ANONYMOUS
        elif verb.ticket:
            caller = await self._by_ticket(query, scope)
        else:
            raise _unknown()
        scope["caller"] = caller
        if wanted is not None and not _may(caller, wanted):
            raise Forbidden(f"This needs the scope {_named(wanted)}.", hint="Use a token that has it; `windlass tokens list` tells.")
        if method not in _READS:
            if bearer is None:
                _refuse_foreign(headers)
            _refuse_other_than_json(headers)
        return caller

    async def still(self, caller: Caller) -> bool:
        """Whether somebody who was let in would still be: for what stays open for long."""
        if caller.token is None:
            return not await self.engine.any_token()
        return (await self.engine.get_token(caller.token.id)).valid(self.clock.now())

    async def sign_in(self, invitation: str, scope: Any) -> tuple[Token, str]:
        """The session that an invitation is good for; a wrong one counts as a wrong token."""
        try:
            return await self.engine.sign_in(invitation)
        except Unauthorized:
            self.failures.count(scope)
            raise

    # With a token, a ticket, or nothing

    async def _by_token(self, bearer: bytes, scope: Scope) -> Caller:
        key = sha256(bearer).digest()
        known = self._known.get(key)
        if known is not None and self.clock.monotonic() < known.until and known.token.valid(self.clock.now()):
            return known.caller
        changes = self._changes
        token = await self.engine.find_token(_secret(bearer))
        if token is None:
            self._known.pop(key, None)
            self.failures.count(scope)  # only those: behind a proxy all come from one address, and who has a token must get in
            raise _unknown()
        caller = Caller(token.name, _scopes(token), token)
        if changes == self._changes:
            self._known[key] = _Known(caller, token, self.clock.monotonic() + FRESH)
            self._known.move_to_end(key)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return caller

    async def _by_ticket(self, query: bytes, scope: Scope) -> Caller:
        given = parse_qs(query.decode("latin-1")).get("ticket")
        if given is None:
            raise _unknown()
        token = await self.engine.find_ticket(given[0])
        if token is None:
            self.failures.count(scope)
            raise _unknown()
        return Caller(token.name, _scopes(token) & {"read"}, token)

    async def _is_open(self, scope: Scope, headers: Headers) -> bool:
        """Whether everybody may do everything: only where the hub was told so, before the first token, and on this machine."""
        if not self._may_be_open or not _is_local(scope, headers):
            return False
        if self.clock.monotonic() >= self._open_until:
            changes = self._changes
            if await self.engine.any_token():
                self._may_be_open = False  # for good: the newest token is never removed
                return False
            if changes == self._changes:
                self._open_until = self.clock.monotonic() + FRESH
        _refuse_other_names(headers)
        return True


def _unknown() -> Unauthorized:
    """The same words whatever is wrong with what was shown, so that nothing can be learnt from them."""
    return Unauthorized(
        "This needs a valid token.", hint="Send Authorization: Bearer wl_...; `windlass tokens create NAME --scopes read` makes one."
    )


def _secret(bearer: bytes) -> str:
    scheme, _, secret = bearer.decode("latin-1").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _scopes(token: Token) -> frozenset[str]:
    return _EVERYTHING if "admin" in token.scopes else frozenset(token.scopes)


def _may(caller: Caller, wanted: str | Collection[str]) -> bool:
    if isinstance(wanted, str):
        return wanted == ANY or wanted in caller.scopes
    return not caller.scopes.isdisjoint(wanted)


def _named(wanted: str | Collection[str]) -> str:
    return wanted if isinstance(wanted, str) else " or ".join(wanted) or "of nobody"


# Where a request comes from


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open(host: str, any_token: bool) -> None:
    """Refuse to listen where others can ask, before there is a token; and say that everybody on this machine may."""
    if any_token:
        return
    if is_loopback(host):
        _LOG.warning(
            "This hub has no token, so everybody on this machine may do everything. Make one before you put a proxy before it, which would "
            "let in everybody: `windlass tokens create NAME --scopes admin`."
        )
    else:
        raise BadInput(
            f"There is no token yet, so a hub on {host} would be open to all who can reach it.",
            hint="Make one first: `windlass tokens create NAME --scopes admin`. Without tokens a hub listens on 127.0.0.1 only.",
        )


def _is_local(scope: Scope, headers: Headers) -> bool:
    """Whether a request was made on this machine, and not handed on by a proxy on it."""
    client = scope.get("client")
    handed_on = any(name in _HANDED_ON or name.startswith(b"x-forwarded-") for name in headers)
    return client is not None and is_loopback(client[0]) and not handed_on


@lru_cache(maxsize=1024)
def _name_in(host: bytes) -> str:
    return re.sub(r":[0-9]*$", "", host.decode("latin-1")).strip("[]")


def _refuse_other_names(headers: Headers) -> None:
    """A page anywhere can let its own name lead here; what a browser then sends still has that name."""
    name = _name_in(headers.get(b"host", b""))
    if not is_loopback(name):
        raise Forbidden(
            f"This hub has no tokens and answers only to localhost, not to {name!r:.80}.",
            hint="Ask it at http://127.0.0.1, or make a token: `windlass tokens create NAME --scopes admin`.",
        )


def _refuse_foreign(headers: Headers) -> None:
    """Another site can let a browser send things here, but not say that it is this site."""
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None:
        foreign = site not in (b"same-origin", b"none")
    else:
        foreign = origin is not None and origin.partition(b"://")[2] != headers.get(b"host")
    if foreign:
        raise Forbidden("This comes from a page of another site.", hint="Use the hub's own page, or send a token.")


def _refuse_other_than_json(headers: Headers) -> None:
    """A form needs no permission to be sent from anywhere; JSON does."""
    empty = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
    if not empty and headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
        raise NotJson("The body must be JSON.", hint="Send Content-Type: application/json.")


class Failures:
    """How many wrong tokens each address has shown lately."""

    def __init__(self, clock: Clock, most: int = FAILURES) -> None:
        self.clock, self.most = clock, most
        self._counts: OrderedDict[str, tuple[int, int]] = OrderedDict()  # when its period ends, and how many

    def count(self, scope: Scope) -> None:
        """Remember one more; refuse an address that has shown too many."""
        address, now = _address(scope), self.clock.monotonic()
        ends, count = self._counts.get(address, (0, 0))
        if count >= self.most and now < ends:
            raise LimitReached("Too many wrong tokens came from this address.", hint="Wait a minute, and mend the token.")
        _LOG.warning("A wrong token came from %s.", address)
        self._counts[address] = (ends, count + 1) if now < ends else (now + PERIOD, 1)
        self._counts.move_to_end(address)
        if len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)


def _address(scope: Scope) -> str:
    """Where a request comes from; of IPv6 the network, since one machine has as many addresses as it likes."""
    client: str = (scope.get("client") or ("",))[0]
    try:
        return str(ip_network((client, 64), strict=False)) if ":" in client else client
    except ValueError:
        return client


# What every answer carries

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
_ALWAYS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", _POLICY),
]
_NOT_KEPT = [*_ALWAYS, (b"cache-control", b"no-store")]


def headers(own: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """What keeps a browser from making more of an answer than it is; none is kept that does not say itself how long."""
    return _ALWAYS if any(name.lower() == b"cache-control" for name, _ in own) else _NOT_KEPT
