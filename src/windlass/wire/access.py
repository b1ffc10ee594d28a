"""Tokens, tickets and the audit."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from windlass.engine import AuditPage
from windlass.engine.access import OVERLAP
from windlass.model import Scope, Token
from windlass.wire.values import maybe_told, told


class TokenView(Struct, frozen=True):
    """Who may do what; nothing of the secret."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    worker: str | None
    principal: str
    kind: Literal["token", "session", "invitation"]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    used_at: str | None


def token_view(token: Token) -> TokenView:
    return TokenView(
        token.id,
        token.name,
        token.scopes,
        token.worker,
        token.principal,
        token.kind,
        told(token.created_at),
        maybe_told(token.expires_at),
        maybe_told(token.revoked_at),
        maybe_told(token.used_at),
    )


class Tokens(Struct, frozen=True):
    """Some tokens, oldest first, and after which id the next page begins."""

    tokens: list[TokenView]
    cursor: str | None


class CreateToken(Struct, frozen=True, forbid_unknown_fields=True):
    """A token that is asked for; with `worker`, it is good for that worker only. Its principal is its own name unless it says another."""

    name: str
    scopes: tuple[Scope, ...]
    worker: str | None = None
    principal: str | None = None
    expires_in: int | None = None  # milliseconds; None: never


class RotateToken(Struct, frozen=True, forbid_unknown_fields=True):
    """For how many milliseconds the old one stays good."""

    overlap: int = OVERLAP


class MadeToken(Struct, frozen=True):
    """A token and its secret, which is told here and never again."""

    token: TokenView
    secret: str


class Me(Struct, frozen=True):
    """Who asks, as the hub knows them."""

    who: str
    scopes: list[Scope]
    token: str | None
    worker: str | None


class TicketView(Struct, frozen=True):
    """What a browser puts behind the address of a stream, `?ticket=...`, since it cannot send a header there."""

    ticket: str
    expires_at: str


class SignIn(Struct, frozen=True, forbid_unknown_fields=True):
    """The ticket of a link by which somebody signs in, once."""

    ticket: str


class SignedOut(Struct, frozen=True):
    """Whether a session was ended. A token is none: who has signed in with one only forgets it."""

    ended: bool


class AuditView(Struct, frozen=True):
    """What somebody did."""

    at: str
    who: str
    what: str
    subject: str


class Audit(Struct, frozen=True):
    """What people did, newest first, and the cursor of the next page."""

    entries: list[AuditView]
    cursor: str | None


def audit_view(page: AuditPage) -> Audit:
    return Audit([AuditView(told(entry.at), entry.who, entry.what, entry.subject) for entry in page.entries], page.cursor)
