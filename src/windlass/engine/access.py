"""Who may do what: tokens, sessions, tickets; and the audit of what was done. Secrets are shown once and kept as hashes."""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from windlass.engine import checks
from windlass.engine.core import Core
from windlass.errors import BadInput, Conflict, LimitReached, NotFound, OutcomeUnknown, StoreError, Unauthorized, WrongState, in_doubt
from windlass.model import SCOPES, Audited, Scope, Token
from windlass.store.access import NEWEST

MINUTE, HOUR = 60_000, 3_600_000
OVERLAP = 24 * HOUR
"""How long a rotated token stays good, unless somebody says otherwise."""
SESSION = 12 * HOUR
INVITATION = 10 * MINUTE
TICKET, LONGEST_TICKET = MINUTE, HOUR

TOKEN, INVITED = "wl_", "wli_"
_is_token = re.compile(r"wl_[A-Za-z0-9_-]{44}").fullmatch
_is_invitation = re.compile(r"wli_[A-Za-z0-9_-]{44}").fullmatch
_is_ticket = re.compile(r"([A-Za-z0-9-]{1,64})\.([0-9]{1,15})\.([A-Za-z0-9_-]{43})").fullmatch


class AuditPage(Struct, frozen=True):
    """What people did, newest first, and the cursor of the next page."""

    entries: list[Audited]
    cursor: str | None


def hash_of(secret: str) -> str:
    """What is kept of a secret. It has 256 random bits, so there is nothing to guess and nothing to slow down."""
    return sha256(secret.encode()).hexdigest()


def _same(one: str, other: str) -> bool:
    """Whether two texts are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


class Access(Core):
    """The verbs of access."""

    # Tokens

    async def create_token(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        worker: str | None = None,
        principal: str | None = None,
        expires_in: int | None = None,
    ) -> tuple[Token, str]:
        """Make a token; its secret is in this answer and nowhere else. Unless said otherwise, it acts on behalf of its own name."""
        checks.maybe(expires_in, "expires_in", 1, self.limits.duration)
        token, secret = self._new_token(TOKEN, name, scopes, worker=worker, principal=principal, expires_in=expires_in)
        await self._keep(token)
        return token, secret

    def _new_token(
        self,
        prefix: str,
        name: str,
        scopes: Iterable[str],
        *,
        worker: str | None = None,
        principal: str | None = None,
        expires_in: int | None,
    ) -> tuple[Token, str]:
        checks.name(name, "A token's name")
        if principal is not None:
            checks.name(principal, "A principal's name")
        if worker is not None:
            checks.name(worker, "A worker's name")
        secret, now = prefix + self.clock.nonce() + self.clock.nonce(), self.clock.now()
        expires_at = None if expires_in is None else now + expires_in
        kind: Any = "token" if prefix == TOKEN else "invitation"
        hash, chosen = hash_of(secret), _scopes(scopes)
        return Token(
            self.clock.new_id(), name, hash, chosen, worker, kind, now, expires_in, expires_at, None, None, principal or name
        ), secret

    async def _keep(self, token: Token) -> None:
        try:
            await self.records.add_token(token, self.limits.tokens)
        except OutcomeUnknown as unknown:
            await self._sure_of(token, unknown)
        except Conflict:
            raise self._too_many() from None

    async def _sure_of(self, token: Token, unknown: OutcomeUnknown) -> None:
        with in_doubt(unknown):
            stored = await self.records.token_by_hash(token.hash)
        if stored is None:
            raise unknown

    def _too_many(self) -> LimitReached:
        hint = "Let those expire that nobody needs; what has ended is removed by retention."
        return LimitReached(f"There are {self.limits.tokens:,} tokens already.", hint=hint)

    async def rotate_token(self, token_id: str, *, overlap: int = OVERLAP) -> tuple[Token, str]:
        """Make a token that may do the same under the same name; the old one stays good until the overlap is over."""
        checks.integer(overlap, "overlap", 0, self.limits.duration)
        now = self.clock.now()
        old = _rotatable(await self.get_token(token_id), now)
        new, secret = self._new_token(TOKEN, old.name, old.scopes, worker=old.worker, principal=old.principal, expires_in=old.lasts)
        ends = now + overlap if old.expires_at is None else min(old.expires_at, now + overlap)
        try:
            await self.records.rotate_token(old, ends, new, self.limits.tokens)
        except OutcomeUnknown as unknown:
            await self._sure_of(new, unknown)
        except Conflict:
            _rotatable(await self.get_token(token_id), now)
            raise self._too_many() from None
        return new, secret

    async def revoke_token(self, token_id: str) -> Token:
        """End a token now; one that has ended stays as it is."""
        token, now = await self.get_token(token_id), self.clock.now()
        if token.revoked_at is not None:
            return token
        await self.records.revoke_token(token_id, now)
        return replace(token, revoked_at=now)

    async def get_token(self, token_id: str) -> Token:
        """The token with this id, whether it is good or not."""
        found = await self.records.token(checks.identifier(token_id, "The token"))
        if found is None:
            raise NotFound(f"There is no token {token_id}.", hint="`windlass tokens list` shows those there are; it is the id that counts.")
        return found

    async def tokens(self, *, after: str = "", count: int = 100) -> list[Token]:
        """Tokens in the order in which they were made."""
        checks.integer(count, "count", 1, self.limits.page)
        if after:
            checks.identifier(after, "after")
        return await self.records.tokens_after(after, count)

    async def any_token(self) -> bool:
        """Whether anybody has ever made a token here; sessions do not count."""
        return await self.records.any_token()

    async def find_token(self, secret: str) -> Token | None:
        """The token of this secret, if it is good; that it was used is noted at most once a minute."""
        if not _is_token(secret):
            return None
        hash, now = hash_of(secret), self.clock.now()
        token = await self.records.token_by_hash(hash)
        if token is None or not _same(token.hash, hash) or not token.valid(now):
            return None
        if token.used_at is None or token.used_at + MINUTE <= now:
            with suppress(StoreError):  # a note: a store that can only be read must not lock anybody out
                await self.records.mark_used(token.id, now - now % MINUTE)
        return token

    # Sessions: somebody follows a link and is signed in

    async def invite(self, name: str, scopes: Iterable[str], *, expires_in: int = INVITATION) -> str:
        """A secret that can be exchanged for a session once, within ten minutes."""
        checks.integer(expires_in, "expires_in", 1, SESSION)
        token, secret = self._new_token(INVITED, name, scopes, expires_in=expires_in)
        await self._keep(token)
        return secret

    async def sign_in(self, invitation: str, *, lasts: int = SESSION) -> tuple[Token, str]:
        """The session that an invitation is good for: exactly one, whoever else holds a copy of it."""
        checks.integer(lasts, "lasts", 1, self.limits.duration)
        if not _is_invitation(invitation):
            raise _not_good()
        secret, now = TOKEN + self.clock.nonce() + self.clock.nonce(), self.clock.now()
        try:
            token = await self.records.sign_in(hash_of(invitation), hash_of(secret), now, lasts)
        except OutcomeUnknown as unknown:
            with in_doubt(unknown):
                token = await self.records.token_by_hash(hash_of(secret))
            if token is None and not unknown.settled:
                raise
        if token is None:
            raise _not_good()
        return token, secret

    # Tickets: a text for an address, which browsers cannot send a header with. It names a token and is signed with its hash, so every
    # hub on the store can check it, it ends with the token, and whoever may only read the store can make no more of it than they have.

    def ticket(self, token: Token, *, expires_in: int = TICKET) -> tuple[str, int]:
        """A text that lets its holder follow events for a minute on behalf of a token, and when it expires."""
        checks.integer(expires_in, "expires_in", 1, LONGEST_TICKET)
        expires_at = self.clock.now() + expires_in
        return f"{token.id}.{expires_at}.{_signature(token, expires_at)}", expires_at

    async def find_ticket(self, text: str) -> Token | None:
        """The token that a ticket was made for, if both are good."""
        parts, now = _is_ticket(text), self.clock.now()
        # The owner of a token could sign for longer; then it would be a token in an address after all.
        if parts is None or not now < (expires_at := int(parts[2])) <= now + LONGEST_TICKET:
            return None
        token = await self.records.token(parts[1])
        if token is None or token.kind == "invitation" or not token.valid(now):
            return None
        return token if _same(parts[3], _signature(token, expires_at)) else None

    # The audit

    async def audit(self, *, cursor: str | None = None, count: int = 100) -> AuditPage:
        """What people did, newest first."""
        checks.integer(count, "count", 1, self.limits.page)
        rows = await self.records.audit(_place(cursor), count)
        return AuditPage([entry for _, entry in rows], str(rows[-1][0]) if len(rows) == count else None)


def _scopes(given: Iterable[str]) -> tuple[Scope, ...]:
    said = {given} if isinstance(given, str) else set(given)
    if not said or not said <= set(SCOPES):
        raise BadInput(
            f"Scopes must be some of {', '.join(SCOPES)}, not {', '.join(sorted(map(str, said))) or 'none'!r:.80}.",
            hint="read looks, submit asks for runs, work is for workers, admin may do all.",
        )
    return tuple(scope for scope in SCOPES if scope in said)


def _rotatable(token: Token, now: int) -> Token:
    if token.kind != "token" or not token.valid(now):
        raise WrongState(
            f"Token {token.id} has ended, or is the session of somebody, so nothing takes its place.", hint="Create a new one."
        )
    return token


def _not_good() -> Unauthorized:
    return Unauthorized("This link is not good, or not any more.", hint="A link works once, for ten minutes: ask for another.")


def _signature(token: Token, expires_at: int) -> str:
    signed = hmac.digest(bytes.fromhex(token.hash), f"events.{token.id}.{expires_at}".encode(), "sha256")
    return urlsafe_b64encode(signed).decode().rstrip("=")


def _place(cursor: str | None) -> int:
    if cursor is None:
        return NEWEST
    if not re.fullmatch(r"[0-9]{1,18}", cursor):
        raise BadInput(f"The cursor {cursor!r:.80} is none of ours.", hint="Copy it from the page before.")
    return int(cursor)
