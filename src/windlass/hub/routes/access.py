"""Access: tokens, tickets, sign-in."""

from __future__ import annotations

from typing import Any

from windlass.api.answers import MadeToken, Me, SignedOut, TicketView
from windlass.api.requests import CreateToken, RotateToken, SignIn
from windlass.api.values import to_rfc3339
from windlass.api.views import TOKEN
from windlass.hub.requests import HubRequest
from windlass.model import SCOPES


async def create_token(request: HubRequest, data: CreateToken) -> MadeToken:
    token, secret = await request.audited({"name": data.name}).create_token(**data.arguments())
    request.hub.forget_tokens()
    return MadeToken(TOKEN.show(token), secret)


async def revoke_token(request: HubRequest, token_id: str) -> Any:
    token = await request.audited({"token_id": token_id}).revoke_token(token_id)
    request.hub.forget_tokens()
    return TOKEN.show(token)


async def rotate_token(request: HubRequest, token_id: str, data: RotateToken | None) -> MadeToken:
    engine = request.audited({"token_id": token_id})
    token, secret = await engine.rotate_token(token_id, overlap=(data or RotateToken()).overlap)
    request.hub.forget_tokens()
    return MadeToken(TOKEN.show(token), secret)


async def get_me(request: HubRequest) -> Me:
    caller, token = request.caller, request.caller.token
    scopes = [scope for scope in SCOPES if scope in caller.scopes]
    return Me(caller.actor, scopes, None if token is None else token.id, None if token is None else token.worker)


async def create_ticket(request: HubRequest) -> TicketView:
    hub, token = request.hub, request.caller.token
    if token is None:  # there are no tokens, so no ticket is needed
        return TicketView("open", to_rfc3339(hub.clock.now() + hub.settings.ticket))
    ticket, expires_at = hub.engine.ticket(token, expires_in=hub.settings.ticket)
    return TicketView(ticket, to_rfc3339(expires_at))


async def sign_in(request: HubRequest, data: SignIn) -> MadeToken:
    token, secret = await request.hub.authenticator.sign_in(data.ticket, request.scope)
    return MadeToken(TOKEN.show(token), secret)


async def sign_out(request: HubRequest) -> SignedOut:
    token = request.caller.token
    if token is None or token.kind != "session":
        return SignedOut(ended=False)
    await request.act("sign out", f"session {token.id}").revoke_token(token.id)
    request.hub.forget_tokens()
    return SignedOut(ended=True)


HANDLERS = {handler.__name__: handler for handler in (create_token, revoke_token, rotate_token, get_me, create_ticket, sign_in, sign_out)}
