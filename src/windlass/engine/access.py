"""Access: tokens, sessions and tickets, and the audit log. Secrets are shown once and kept as hashes."""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from windlass.answers import AuditPage
from windlass.defaults import TOKEN_OVERLAP
from windlass.engine import checks
from windlass.engine.ground import Part
from windlass.errors import BadInput, Conflict, LimitReached, NotFound, OutcomeUnknown, StoreError, Unauthorized, WrongState, in_doubt
from windlass.model import SCOPES, Scope, Token
from windlass.store.records.access import NEWEST

MINUTE, HOUR = 60_000, 3_600_000
SESSION = 12 * HOUR
INVITATION = 10 * MINUTE
TICKET, LONGEST_TICKET = MINUTE, HOUR

TOKEN, INVITED = "wl_", "wli_"
_is_token = re.compile(r"wl_[A-Za-z0-9_-]{44}").fullmatch
_is_invitation = re.compile(r"wli_[A-Za-z0-9_-]{44}").fullmatch
_is_ticket = re.compile(r"([A-Za-z0-9-]{1,64})\.([0-9]{1,15})\.([A-Za-z0-9_-]{43})").fullmatch


def hash_of(secret: str) -> str:
    """The hash that is kept of a secret. A secret has 256 random bits, so it cannot be guessed and the hash need not be slow."""
    return sha256(secret.encode()).hexdigest()


def _same(one: str, other: str) -> bool:
    """Whether two texts are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


class Access(Part):
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
        """Create a token; its secret is in this answer and nowhere else. By default its principal is its own name."""
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
            await self.records.access.add_token(token, self.limits.tokens)
        except OutcomeUnknown as unknown:
            await self._sure_of(token, unknown)
        except Conflict:
            raise self._too_many() from None

    async def _sure_of(self, token: Token, unknown: OutcomeUnknown) -> None:
        with in_doubt(unknown):
            stored = await self.records.access.token_by_hash(token.hash)
        if stored is None:
            raise unknown

    def _too_many(self) -> LimitReached:
        hint = "Revoke tokens that are not needed; retention removes those that have ended."
        return LimitReached(f"There are {self.limits.tokens:,} tokens already.", hint=hint)

    async def rotate_token(self, token_id: str, *, overlap: int = TOKEN_OVERLAP) -> tuple[Token, str]:
        """Create a token with the same name and scopes; the old one stays valid until the overlap is over."""
        checks.integer(overlap, "overlap", 0, self.limits.duration)
        now = self.clock.now()
        old = _rotatable(await self.get_token(token_id), now)
        new, secret = self._new_token(TOKEN, old.name, old.scopes, worker=old.worker, principal=old.principal, expires_in=old.ttl)
        ends = now + overlap if old.expires_at is None else min(old.expires_at, now + overlap)
        try:
            await self.records.access.rotate_token(old, ends, new, self.limits.tokens)
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
        await self.records.access.revoke_token(token_id, now)
        return replace(token, revoked_at=now)

    async def get_token(self, token_id: str) -> Token:
        """The token with this id, whether it is valid or not."""
        token = await self.records.access.token(checks.identifier(token_id, "The token"))
        if token is None:
            raise NotFound(f"There is no token {token_id}.", hint="`windlass tokens list` shows those there are; it is the id that counts.")
        return token

    async def tokens(self, *, after: str = "", count: int = 100) -> list[Token]:
        """Tokens in the order of their creation."""
        checks.integer(count, "count", 1, self.limits.page)
        if after:
            checks.identifier(after, "after")
        return await self.records.access.tokens_after(after, count)

    async def any_token(self) -> bool:
        """Whether any token was ever created on this store; sessions do not count."""
        return await self.records.access.any_token()

    async def find_token(self, secret: str) -> Token | None:
        """The token of this secret, if it is valid; its use is recorded at most once a minute."""
        if not _is_token(secret):
            return None
        hash, now = hash_of(secret), self.clock.now()
        token = await self.records.access.token_by_hash(hash)
        if token is None or not _same(token.hash, hash) or not token.valid(now):
            return None
        if token.used_at is None or token.used_at + MINUTE <= now:
            with suppress(StoreError):  # best effort: on a read-only store tokens must still work
                await self.records.access.mark_used(token.id, now - now % MINUTE)
        return token

    # Sessions: a person follows an invitation link and is signed in

    async def invite(self, name: str, scopes: Iterable[str], *, expires_in: int = INVITATION) -> str:
        """A secret that can be exchanged for a session once, within ten minutes."""
        checks.integer(expires_in, "expires_in", 1, SESSION)
        token, secret = self._new_token(INVITED, name, scopes, expires_in=expires_in)
        await self._keep(token)
        return secret

    async def sign_in(self, invitation: str, *, ttl: int = SESSION) -> tuple[Token, str]:
        """The session that an invitation is valid for: exactly one, however many copies of the invitation there are."""
        checks.integer(ttl, "ttl", 1, self.limits.duration)
        if not _is_invitation(invitation):
            raise _not_good()
        secret, now = TOKEN + self.clock.nonce() + self.clock.nonce(), self.clock.now()
        try:
            token = await self.records.access.sign_in(hash_of(invitation), hash_of(secret), now, ttl)
        except OutcomeUnknown as unknown:
            with in_doubt(unknown):
                token = await self.records.access.token_by_hash(hash_of(secret))
            if token is None and not unknown.settled:
                raise
        if token is None:
            raise _not_good()
        return token, secret

    # Tickets: a text for a URL, for browsers that cannot send a header. It names a token and is signed with the token's hash, so every
    # hub on the store can check it, it ends with the token, and a person who can only read the store gains no further rights by it.

    def ticket(self, token: Token, *, expires_in: int = TICKET) -> tuple[str, int]:
        """A text that lets its holder follow events for a minute on behalf of a token, and its expiry time."""
        checks.integer(expires_in, "expires_in", 1, LONGEST_TICKET)
        expires_at = self.clock.now() + expires_in
        return f"{token.id}.{expires_at}.{_signature(token, expires_at)}", expires_at

    async def find_ticket(self, text: str) -> Token | None:
        """The token that a ticket was made for, if both are valid."""
        parts, now = _is_ticket(text), self.clock.now()
        # The owner of a token could sign a longer lifetime; the ticket would then be a token in a URL.
        if parts is None or not now < (expires_at := int(parts[2])) <= now + LONGEST_TICKET:
            return None
        token = await self.records.access.token(parts[1])
        if token is None or token.kind == "invitation" or not token.valid(now):
            return None
        return token if _same(parts[3], _signature(token, expires_at)) else None

    # The audit

    async def audit(self, *, cursor: str | None = None, count: int = 100) -> AuditPage:
        """The audit log, newest first."""
        checks.integer(count, "count", 1, self.limits.page)
        rows = await self.records.access.audit(_place(cursor), count)
        return AuditPage([entry for _, entry in rows], str(rows[-1][0]) if len(rows) == count else None)


def _scopes(scopes: Iterable[str]) -> tuple[Scope, ...]:
    names = {scopes} if isinstance(scopes, str) else set(scopes)
    if not names or not names <= set(SCOPES):
        raise BadInput(
            f"Scopes must be some of {', '.join(SCOPES)}, not {', '.join(sorted(map(str, names))) or 'none'!r:.80}.",
            hint="read is for reading, submit for creating runs, work for workers, admin for everything.",
        )
    return tuple(scope for scope in SCOPES if scope in names)


def _rotatable(token: Token, now: int) -> Token:
    if token.kind != "token" or not token.valid(now):
        raise WrongState(f"Token {token.id} has ended, or is a session, so it cannot be rotated.", hint="Create a new one.")
    return token


def _not_good() -> Unauthorized:
    return Unauthorized("This link is not valid, or no longer valid.", hint="A link works once, for ten minutes: ask for another.")


def _signature(token: Token, expires_at: int) -> str:
    digest = hmac.digest(bytes.fromhex(token.hash), f"events.{token.id}.{expires_at}".encode(), "sha256")
    return urlsafe_b64encode(digest).decode().rstrip("=")


def _place(cursor: str | None) -> int:
    if cursor is None:
        return NEWEST
    if not re.fullmatch(r"[0-9]{1,18}", cursor):
        raise BadInput(f"The cursor {cursor!r:.80} is not one of this list.", hint="Copy it from the page before.")
    return int(cursor)
