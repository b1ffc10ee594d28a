"""The commands about access: tokens, and the audit of what people did."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from windlass.api.verbs import Verbs
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.output import cell, line, table
from windlass.cli.shell import Shell
from windlass.model import Audited, Token
from windlass.store.base import run_sync


def create(shell: Shell) -> int:
    """Make a token, and print its secret, which is not shown again."""
    given = shell.arguments
    with shell.engine() as engine:
        acting = shell.act(engine, "create", f"token {given.whose:.100}")
        token, secret = run_sync(
            acting.create_token(given.whose, given.scopes, worker=given.worker, principal=given.principal, expires_in=given.expires)
        )
    return _tell_secret(shell, token, secret)


def rotate(shell: Shell) -> int:
    """Make the successor of a token, and print its secret; the old one stays good for a while."""
    given = shell.arguments
    with shell.engine() as engine:
        acting = shell.act(engine, "rotate", f"token {given.id:.100}")
        token, secret = run_sync(acting.rotate_token(given.id, overlap=given.overlap))
    return _tell_secret(shell, token, secret)


def _tell_secret(shell: Shell, token: Token, secret: str) -> int:
    shell.answer(Verbs.create_token, (token, secret), secret)
    shell.output.note(f"This is token {token.id}. Keep its secret: it is not shown again.", style="yellow")
    return OK


def revoke(shell: Shell) -> int:
    """End a token now; hubs that know it notice within a second."""
    id = shell.arguments.id
    with shell.engine() as engine:
        token = run_sync(shell.act(engine, "revoke", f"token {id:.100}").revoke_token(id))
    return shell.answer(Verbs.revoke_token, token, line(f"{token.id} ({token.name}) is revoked."))


def list_all(shell: Shell) -> int:
    """List the tokens, oldest first."""
    with shell.engine() as engine:
        found = run_sync(engine.tokens(after=shell.arguments.after, count=shell.arguments.limit))
    return shell.answer_list(Verbs.tokens, found, _token_table, "No tokens.")


def audit(shell: Shell) -> int:
    """List what people did, newest first."""
    with shell.engine() as engine:
        page = run_sync(engine.audit(cursor=shell.arguments.cursor, count=shell.arguments.limit))
    shell.answer_list(Verbs.audit, page.entries, _audit_table, "Nobody has done anything.", page=page)
    if page.cursor is not None:
        shell.output.note(f"There are more: --cursor {page.cursor}")
    return OK


# How they look


def _token_table(tokens: Sequence[Token], now: int) -> Table:
    made = table("id", "name", "scopes", "worker", "used", "state", cut=("name", "worker"), folded=("scopes",))
    for token in tokens:
        used = "never" if token.used_at is None else views.ago(token.used_at, now)
        made.add_row(token.id, cell(token.name), ", ".join(token.scopes), cell(token.worker or "any"), used, _state(token, now))
    return made


def _state(token: Token, now: int) -> Text:
    if token.revoked_at is not None:
        return Text("revoked", style="red")
    if not token.valid(now):
        return Text("expired", style="yellow")
    good = "good" if token.kind == "token" else token.kind
    return Text(good if token.expires_at is None else f"{good} until {views.moment(token.expires_at)}", style="green")


def _audit_table(entries: Sequence[Audited], _: int) -> Table:
    made = table("at", "who", "what", "subject", cut=("who", "subject"))
    for entry in entries:
        made.add_row(views.moment(entry.at), cell(entry.who), line(entry.what), cell(entry.subject))
    return made
