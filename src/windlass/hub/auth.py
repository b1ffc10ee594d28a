"""Authentication and scopes. Every request passes here, so the usual case is one dictionary lookup."""

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
from windlass.dialects.base import Credentials, Dialect, Identity
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
"""Milliseconds for which a token read from the store is cached: the longest that a revoked one stays valid on another hub."""
REMEMBERED = 10_000
"""Tokens, and addresses with invalid ones, that are kept in memory at most."""
FAILURES, PERIOD = 30, 60_000
"""Invalid tokens from one address, within this many milliseconds, after which it must wait."""

_READS = {"GET", "HEAD", "OPTIONS"}
_IN_QUERY = re.compile(rb"(?:^|&)(?:access_)?token=|wli?_[A-Za-z0-9_-]{44}")
_EVERYTHING = frozenset(SCOPES)
_HANDED_ON = {b"forwarded", b"via", b"x-real-ip"}


class Caller(NamedTuple):
    """The caller of a request, and its rights."""

    actor: str
    scopes: frozenset[str]
    token: Token | None = None
    identity: Identity | None = None  # by a credential of a dialect

    @property
    def principal(self) -> Principal:
        """The principal on whose behalf it calls."""
        if self.identity is not None:
            return Principal(self.actor, trusted=self.identity.trusted)
        return Principal(self.actor if self.token is None else self.token.principal, trusted=_may(self, "admin"))

    def may(self, scope: str) -> bool:
        """Whether it has a scope."""
        return _may(self, scope)

    def check_scope(self, scope: str) -> None:
        """Refuse an action that needs a wider scope."""
        if not _may(self, scope):
            raise Forbidden(f"This needs the scope {scope}.", hint="Use a token that has it; `windlass tokens list` shows them.")

    def check_worker(self, name: str) -> None:
        """Refuse to act as a worker that the token is not bound to: its own name, or one that begins with it and a dot."""
        own = self.token and self.token.worker
        if own is not None and name != own and not name.startswith(f"{own}."):
            raise Forbidden(
                f"This token is for the worker {own!r}, not for {name!r:.80}.",
                hint="Start the worker under that name, or with a token of its own.",
            )

    def check_holds(self, run: Run) -> None:
        """Refuse an action that only the worker of a run may do."""
        if run.worker is None or run.state not in LIVE:
            raise Forbidden("No worker has this run, so reading it needs the scope read.", hint="Use a token with the scope read.")
        self.check_worker(run.worker)

    @property
    def stands_for_worker(self) -> bool:
        """Whether its statements about its workers are trusted: its token is bound to them alone, or has the scope admin."""
        return self.token is None or self.token.worker is not None or _may(self, "admin")


ANONYMOUS = Caller("anonymous", _EVERYTHING)
"""The caller of an open hub, which has no tokens."""
NOBODY = Caller("nobody", frozenset())


class _Known(NamedTuple):
    caller: Caller
    token: Token
    until: int  # on the monotonic clock


class Authenticator:
    """Admits callers."""

    def __init__(self, engine: Engine, clock: Clock, settings: HubSettings) -> None:
        self.engine, self.clock = engine, clock
        self.failures = Failures(clock)
        self._may_be_open = settings.open and is_loopback(settings.host)
        self._open_until = 0
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._changes = 0

    def forget(self) -> None:
        """A token was created or ended here: that takes effect with the next request."""
        self._known.clear()
        self._open_until = 0
        self._changes += 1

    async def admit(self, scope: Scope, verb: Verb, own: Credentials | None = None) -> Caller:
        """The caller, if it may call the verb; it is also put into the scope. A dialect may have credentials of its own."""
        query, method, required = scope["query_string"], scope["method"], verb.scope
        headers: Headers = dict(scope["headers"])
        if query and _IN_QUERY.search(query):
            raise Unauthorized(
                "A token must not be in an address.", hint="Send it as a header, and make another: addresses are kept in logs."
            )
        bearer = headers.get(b"authorization")
        if required is None:
            caller = NOBODY
            if own is not None and not own.required:
                await self._is_open(scope, headers)  # what a dialect shows to all is not for pages that other names lead here
        elif own is not None and (identity := await self._by_identity(own, headers, scope)) is not None:
            caller = Caller(identity.actor, identity.scopes, identity=identity)
        elif bearer is not None:
            caller = await self._by_token(bearer, scope)
        elif not (own and own.required) and await self._is_open(scope, headers):
            caller = ANONYMOUS
        elif verb.ticket:
            caller = await self._by_ticket(query, scope)
        else:
            raise _unknown()
        scope["caller"] = caller
        if required is not None and not _may(caller, required):
            raise Forbidden(f"This needs the scope {_named(required)}.", hint="Use a token that has it; `windlass tokens list` shows them.")
        if method not in _READS:
            shown = bearer is not None or caller.identity is not None
            if not shown:
                _refuse_foreign(headers)
            if not shown or own is None:
                _refuse_other_than_json(headers)
        return caller

    def trusts_browsers(self, origin: str, own: Credentials | None) -> bool:
        """Whether a page of this origin may read what pages of every origin may: if it needs a credential, or is of this machine."""
        needed = not self._may_be_open or (own is not None and own.required)
        return needed or is_loopback(_name_in(origin.partition("://")[2].encode()))

    async def still(self, caller: Caller) -> bool:
        """Whether an admitted caller would still be admitted: for requests that stay open for long."""
        if caller.identity is not None:
            return await caller.identity.still()
        if caller is NOBODY:
            return True
        if caller.token is None:
            return not await self.engine.any_token()
        return (await self.engine.get_token(caller.token.id)).valid(self.clock.now())

    async def sign_in(self, invitation: str, scope: Any) -> tuple[Token, str]:
        """The session for an invitation; an invalid one counts as an invalid token."""
        try:
            return await self.engine.sign_in(invitation)
        except Unauthorized:
            self.failures.count(scope)
            raise

    # With a credential of a dialect, a token, a ticket, or nothing

    async def _by_identity(self, own: Credentials, headers: Headers, scope: Scope) -> Identity | None:
        try:
            return await own.identify(headers, local=_is_local(scope, headers))
        except Unauthorized:
            self.failures.count(scope)
            raise

    async def _by_token(self, bearer: bytes, scope: Scope) -> Caller:
        key = sha256(bearer).digest()
        known = self._known.get(key)
        if known is not None and self.clock.monotonic() < known.until and known.token.valid(self.clock.now()):
            return known.caller
        changes = self._changes
        token = await self.engine.find_token(_secret(bearer))
        if token is None:
            self._known.pop(key, None)
            self.failures.count(scope)  # only these: behind a proxy all requests come from one address, and a valid token must be admitted
            raise _unknown()
        caller = Caller(token.name, _scopes(token), token)
        if changes == self._changes:
            self._known[key] = _Known(caller, token, self.clock.monotonic() + FRESH)
            self._known.move_to_end(key)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return caller

    async def _by_ticket(self, query: bytes, scope: Scope) -> Caller:
        tickets = parse_qs(query.decode("latin-1")).get("ticket")
        if tickets is None:
            raise _unknown()
        token = await self.engine.find_ticket(tickets[0])
        if token is None:
            self.failures.count(scope)
            raise _unknown()
        return Caller(token.name, _scopes(token) & {"read"}, token)

    async def _is_open(self, scope: Scope, headers: Headers) -> bool:
        """Whether every caller may do everything: only if the hub is set to be open, before the first token, and on this machine."""
        if not self._may_be_open or not _is_local(scope, headers):
            return False
        if self.clock.monotonic() >= self._open_until:
            changes = self._changes
            if await self.engine.any_token():
                self._may_be_open = False  # permanently: the newest token is never removed
                return False
            if changes == self._changes:
                self._open_until = self.clock.monotonic() + FRESH
        _refuse_other_names(headers)
        return True


def _unknown() -> Unauthorized:
    """The same message for every invalid credential, so that nothing can be learnt from it."""
    return Unauthorized(
        "This needs a valid token.", hint="Send Authorization: Bearer wl_...; `windlass tokens create NAME --scopes read` makes one."
    )


def _secret(bearer: bytes) -> str:
    scheme, _, secret = bearer.decode("latin-1").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _scopes(token: Token) -> frozenset[str]:
    return _EVERYTHING if "admin" in token.scopes else frozenset(token.scopes)


def _may(caller: Caller, required: str | Collection[str]) -> bool:
    if isinstance(required, str):
        return required == ANY or required in caller.scopes
    return not caller.scopes.isdisjoint(required)


def _named(required: str | Collection[str]) -> str:
    return required if isinstance(required, str) else " or ".join(required) or "of nobody"


# Where a request comes from


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_open(host: str, any_token: bool, *, guarded: bool = False) -> None:
    """Refuse to listen on a public address before there is a token, unless a dialect has credentials of its own; warn of what is open."""
    if any_token:
        return
    if guarded and not is_loopback(host):
        _LOG.warning(
            "This hub has no token, so only dialects with credentials of their own can be used. For the page and the API create one: "
            "`windlass tokens create NAME --scopes admin`."
        )
    elif is_loopback(host):
        _LOG.warning(
            "This hub has no token, so every user of this machine may do everything. Create one before you put a proxy before it, which "
            "would let in every client: `windlass tokens create NAME --scopes admin`."
        )
    else:
        raise BadInput(
            f"There is no token yet, so a hub on {host} would be open to all who can reach it.",
            hint="Make one first: `windlass tokens create NAME --scopes admin`. Without tokens a hub listens on 127.0.0.1 only.",
        )


def refuse_dialect(dialect: Dialect, settings: HubSettings, any_token: bool) -> None:
    """Refuse to serve a dialect whose credentials are not set where the hub itself is not open, or one for this machine elsewhere."""
    is_local = is_loopback(settings.host)
    if dialect.private and not is_local:
        raise BadInput(
            f"The dialect {dialect.name} cannot be served on {settings.host}: {dialect.private}",
            hint="Listen on 127.0.0.1, or change that.",
        )
    open_too = settings.open and is_local and not any_token
    if dialect.required and not open_too and not dialect.guarded:
        raise BadInput(f"The dialect {dialect.name} has no credentials, and this hub is not open.", hint=dialect.required)


def _is_local(scope: Scope, headers: Headers) -> bool:
    """Whether a request was made on this machine, and not forwarded by a proxy on it."""
    client = scope.get("client")
    for name in headers:
        if name in _HANDED_ON or name.startswith(b"x-forwarded-"):
            return False
    return client is not None and is_loopback(client[0])


@lru_cache(maxsize=1024)
def _name_in(host: bytes) -> str:
    return re.sub(r":[0-9]*$", "", host.decode("latin-1")).strip("[]")


def _refuse_other_names(headers: Headers) -> None:
    """Any site can point its own name here (DNS rebinding); the browser still sends that name."""
    name = _name_in(headers.get(b"host", b""))
    if not is_loopback(name):
        raise Forbidden(
            f"This hub has no tokens and answers only to localhost, not to {name!r:.80}.",
            hint="Use http://127.0.0.1, or create a token: `windlass tokens create NAME --scopes admin`.",
        )


def _refuse_foreign(headers: Headers) -> None:
    """Another site can make a browser send requests here, but cannot forge its origin."""
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None:
        foreign = site not in (b"same-origin", b"none")
    else:
        foreign = origin is not None and origin.partition(b"://")[2] != headers.get(b"host")
    if foreign:
        raise Forbidden("This comes from a page of another site.", hint="Use the hub's own page, or send a token.")


def _refuse_other_than_json(headers: Headers) -> None:
    """A form can be sent from any site without permission; JSON cannot."""
    empty = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
    if not empty and headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
        raise NotJson("The body must be JSON.", hint="Send Content-Type: application/json.")


class Failures:
    """How many invalid tokens each address has sent lately."""

    def __init__(self, clock: Clock, limit: int = FAILURES) -> None:
        self.clock, self.limit = clock, limit
        self._counts: OrderedDict[str, tuple[int, int]] = OrderedDict()  # the end of its period, and the count

    def count(self, scope: Scope) -> None:
        """Count one more; refuse an address that has sent too many."""
        address, now = _address(scope), self.clock.monotonic()
        ends, count = self._counts.get(address, (0, 0))
        if count >= self.limit and now < ends:
            raise LimitReached("Too many wrong tokens came from this address.", hint="Wait a minute, and correct the token.")
        _LOG.warning("A wrong token came from %s.", address)
        self._counts[address] = (ends, count + 1) if now < ends else (now + PERIOD, 1)
        self._counts.move_to_end(address)
        if len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)


def _address(scope: Scope) -> str:
    """The address of a request; for IPv6 the network, because one machine has very many addresses."""
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
    """Headers that restrict what a browser does with an answer; answers are not cached unless they set their own lifetime."""
    for name, _ in own:
        if name.lower() == b"cache-control":
            return _ALWAYS
    return _NOT_KEPT
