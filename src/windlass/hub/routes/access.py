"""Access: tokens, tickets, sign-in, and the audit."""

from __future__ import annotations

from typing import Any

from litestar import delete, get, post
from litestar.params import FromPath, FromQuery, JSONBody

from windlass import wire
from windlass.hub.auth import ANY
from windlass.hub.requests import HubRequest
from windlass.hub.routes.runs import Count
from windlass.model import SCOPES


@get("/api/v1/tokens", opt={"scope": "admin"}, summary="Tokens, oldest first; never a secret")
async def list_tokens(request: HubRequest, after: FromQuery[str] = "", count: Count = 100) -> wire.Tokens:
    found = await request.hub.engine.tokens(after=after, count=count)
    return wire.Tokens([wire.token_view(token) for token in found], found[-1].id if len(found) == count else None)


@post("/api/v1/tokens", opt={"scope": "admin"}, summary="Make a token; its secret is told once")
async def create_token(request: HubRequest, data: JSONBody[wire.CreateToken]) -> wire.MadeToken:
    engine = request.act("create", f"token {data.name:.100}")
    token, secret = await engine.create_token(
        data.name, data.scopes, worker=data.worker, principal=data.principal, expires_in=data.expires_in
    )
    request.hub.forget_tokens()
    return wire.MadeToken(wire.token_view(token), secret)


@get("/api/v1/tokens/{token_id:str}", opt={"scope": "admin"}, summary="One token")
async def get_token(request: HubRequest, token_id: FromPath[str]) -> wire.TokenView:
    return wire.token_view(await request.hub.engine.get_token(token_id))


@delete("/api/v1/tokens/{token_id:str}", status_code=200, opt={"scope": "admin"}, summary="End a token now")
async def revoke_token(request: HubRequest, token_id: FromPath[str]) -> wire.TokenView:
    token = await request.act("revoke", f"token {token_id:.100}").revoke_token(token_id)
    request.hub.forget_tokens()
    return wire.token_view(token)


@post("/api/v1/tokens/{token_id:str}/rotate", opt={"scope": "admin"}, summary="Make its successor; the old one stays good for a while")
async def rotate_token(request: HubRequest, token_id: FromPath[str], data: JSONBody[wire.RotateToken | None] = None) -> wire.MadeToken:
    engine = request.act("rotate", f"token {token_id:.100}")
    token, secret = await engine.rotate_token(token_id, overlap=(data or wire.RotateToken()).overlap)
    request.hub.forget_tokens()
    return wire.MadeToken(wire.token_view(token), secret)


@get("/api/v1/me", opt={"scope": ANY}, summary="Who I am, and what I may do")
async def get_me(request: HubRequest) -> wire.Me:
    who, may, token = request.caller
    scopes = [scope for scope in SCOPES if scope in may]
    return wire.Me(who, scopes, None if token is None else token.id, None if token is None else token.worker)


@post("/api/v1/tickets", opt={"scope": "read"}, summary="A short-lived text that opens a stream of events")
async def create_ticket(request: HubRequest) -> wire.TicketView:
    hub, token = request.hub, request.caller.token
    if token is None:  # nobody has one, so nobody needs one
        return wire.TicketView("open", wire.told(hub.clock.now() + hub.settings.ticket))
    ticket, expires_at = hub.engine.ticket(token, expires_in=hub.settings.ticket)
    return wire.TicketView(ticket, wire.told(expires_at))


@post("/api/v1/session", opt={"scope": None}, summary="Sign in with the ticket of a link, once")
async def sign_in(request: HubRequest, data: JSONBody[wire.SignIn]) -> wire.MadeToken:
    token, secret = await request.hub.gate.sign_in(data.ticket, request.scope)
    return wire.MadeToken(wire.token_view(token), secret)


@delete("/api/v1/session", status_code=200, opt={"scope": ANY}, summary="Sign out: end the session that this is asked with")
async def sign_out(request: HubRequest) -> wire.SignedOut:
    token = request.caller.token
    if token is None or token.kind != "session":
        return wire.SignedOut(ended=False)
    await request.act("sign out", f"session {token.id}").revoke_token(token.id)
    request.hub.forget_tokens()
    return wire.SignedOut(ended=True)


@get("/api/v1/audit", opt={"scope": "admin"}, summary="What people did, newest first")
async def list_audit(request: HubRequest, cursor: FromQuery[str | None] = None, count: Count = 100) -> wire.Audit:
    return wire.audit_view(await request.hub.engine.audit(cursor=cursor, count=count))


HANDLERS: list[Any] = [
    list_tokens, create_token, get_token, revoke_token, rotate_token, get_me, create_ticket, sign_in, sign_out, list_audit,
]  # fmt: skip
