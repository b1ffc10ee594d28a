"""Access: tokens, tickets, sign-in, the audit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from windlass.answers import AuditPage
from windlass.api.answers import MadeToken, Me, SignedOut, TicketView
from windlass.api.gives import Gives, one, page_of, paged
from windlass.api.requests import CreateToken, RotateToken, SignIn
from windlass.api.rows import AFTER_NAME, ANY, COUNT, CURSOR, DELETE, GET, POST, ByRow, Verb, verb
from windlass.api.views import AUDITED, TOKEN
from windlass.defaults import TOKEN_OVERLAP
from windlass.model import Token

_PAGE = paged("Tokens", "Some tokens, and after which id the next page begins.", lambda token: token.id, tokens=TOKEN)
_MADE = Gives(
    MadeToken,
    lambda pair, _: MadeToken(TOKEN.show(pair[0]), pair[1]),
    lambda answer, _: (TOKEN.read(answer.token), answer.secret),
)
_AUDIT = page_of(AuditPage, "Audit", "What was done, newest first, and the cursor of the next page.", entries=AUDITED)


class AccessVerbs(Protocol):
    """Tokens and the audit."""

    @verb(GET, "/tokens", "Tokens, oldest first, without their secrets", _PAGE, scope="admin", query=(AFTER_NAME, COUNT))
    async def tokens(self, *, after: str = "", count: int = 100) -> list[Token]:
        """Tokens in the order of their creation."""
        raise ByRow

    @verb(
        POST, "/tokens", "Create a token; its secret is shown once", _MADE,
        scope="admin", takes=CreateToken, status=201, audit="create token {name:.100}",
    )  # fmt: skip
    async def create_token(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        worker: str | None = None,
        principal: str | None = None,
        expires_in: int | None = None,
    ) -> tuple[Token, str]:
        """Create a token; the second value is its secret, which is not stored."""
        raise ByRow

    @verb(GET, "/tokens/{token_id}", "One token", one(TOKEN), scope="admin")
    async def get_token(self, token_id: str) -> Token:
        """The token with this id, whether it is valid or not."""
        raise ByRow

    @verb(DELETE, "/tokens/{token_id}", "End a token now", one(TOKEN), scope="admin", audit="revoke token {token_id:.100}", repeatable=True)
    async def revoke_token(self, token_id: str) -> Token:
        """End a token now; one that has ended does not change."""
        raise ByRow

    @verb(
        POST, "/tokens/{token_id}/rotate", "Create its successor; the old one stays valid for a while", _MADE,
        scope="admin", takes=RotateToken | None, status=201, audit="rotate token {token_id:.100}",
    )  # fmt: skip
    async def rotate_token(self, token_id: str, *, overlap: int = TOKEN_OVERLAP) -> tuple[Token, str]:
        """Create a token with the same name and rights; the old one stays valid until the overlap is over."""
        raise ByRow

    @verb(GET, "/audit", "Audited actions, newest first", _AUDIT, scope="admin", query=(CURSOR, COUNT))
    async def audit(self, *, cursor: str | None = None, count: int = 100) -> AuditPage:
        """Audited actions, newest first."""
        raise ByRow


SESSIONS = (
    Verb("get_me", GET, "/me", "The name and scopes of this token", Gives(Me), scope=ANY, repeatable=True),
    Verb(
        "create_ticket", POST, "/tickets", "A short-lived text that opens a stream of events", Gives(TicketView), scope="read", status=201
    ),
    Verb("sign_in", POST, "/session", "Sign in with the ticket of a link, once", Gives(MadeToken), scope=None, takes=SignIn, status=201),
    Verb("sign_out", DELETE, "/session", "Sign out: end the session of this request", Gives(SignedOut), scope=ANY),
)
