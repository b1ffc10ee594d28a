"""The commands about access: tokens, and the audit."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from windlass.api.verbs import Verbs
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.context import CommandContext
from windlass.cli.output import cell, line, table
from windlass.cli.rows import OPERATE, Commands, option
from windlass.cli.values import CURSOR, ID, after, duration, limit
from windlass.config.kinds import split
from windlass.defaults import TOKEN_OVERLAP
from windlass.model import SCOPES, AuditEntry, Token

COMMANDS = Commands()
TOKENS = COMMANDS.group(
    "tokens",
    help="Create, list, rotate and revoke the tokens of a hub",
    topic=OPERATE,
    meant_by=("keys", "users", "auth", "login"),
    examples="""
    windlass tokens create ops --scopes admin
    windlass tokens create shop --scopes read,submit --expires 90d
    windlass tokens list
    """,
)


@TOKENS.add(
    "create",
    option("name", metavar="NAME", help="the name of its owner, by which the audit shows it"),
    option("--scopes", type=split, required=True, metavar="A,B", help=f"some of {', '.join(SCOPES)}; admin includes the others"),
    option("--worker", metavar="NAME", help="valid for this worker only, and for names that begin with it and a dot"),
    option("--principal", metavar="NAME", help="the owner of what code defines with it (default: its own name)"),
    option("--expires", type=duration, metavar="TIME", help="how long it is valid, such as 90d (default: until it is revoked)"),
    meant_by=("add", "new"),
    examples="""
    windlass tokens create shop --scopes read,submit --expires 90d
    windlass tokens create worker-7 --scopes work --worker worker-7 --principal fleet
    """,
)
def create(context: CommandContext) -> int:
    """Create a token, and print its secret, which is not shown again."""
    arguments = context.arguments
    options = {"worker": arguments.worker, "principal": arguments.principal, "expires_in": arguments.expires}
    token, secret = context.call(Verbs.create_token, arguments.name, arguments.scopes, **options)
    return _print_secret(context, token, secret)


@TOKENS.add(
    "rotate",
    ID,
    option("--overlap", type=duration, default=TOKEN_OVERLAP, metavar="TIME", help="how long both are valid (default: 1d)"),
    examples="windlass tokens rotate ID\nwindlass tokens rotate ID --overlap 1h",
)
def rotate(context: CommandContext) -> int:
    """Create the successor of a token, and print its secret; the old one stays valid for a while."""
    arguments = context.arguments
    token, secret = context.call(Verbs.rotate_token, arguments.id, overlap=arguments.overlap)
    return _print_secret(context, token, secret)


def _print_secret(context: CommandContext, token: Token, secret: str) -> int:
    context.answer(Verbs.create_token, (token, secret), secret)
    context.output.note(f"This is token {token.id}. Keep its secret: it is not shown again.", style="yellow")
    return OK


@TOKENS.add("revoke", ID, meant_by=("delete", "remove", "drop", "rm"), examples="windlass tokens revoke ID")
def revoke(context: CommandContext) -> int:
    """Revoke a token now; hubs refuse it within a second."""
    id = context.arguments.id
    token = context.call(Verbs.revoke_token, id)
    return context.answer(Verbs.revoke_token, token, line(f"{token.id} ({token.name}) is revoked."))


@TOKENS.add(
    "list",
    limit(100),
    after("ID", "only tokens after this one", default=""),
    examples="windlass tokens list\nwindlass tokens list --json",
)
def list_all(context: CommandContext) -> int:
    """List the tokens, oldest first."""
    tokens = context.call(Verbs.tokens, after=context.arguments.after, count=context.arguments.limit)
    return context.answer_list(Verbs.tokens, tokens, _token_table, "No tokens.")


@COMMANDS.add(
    "audit", limit(20), CURSOR, topic=OPERATE, meant_by=("journal",), examples="windlass audit\nwindlass audit --limit 100 --json"
)
def audit(context: CommandContext) -> int:
    """List the entries of the audit, newest first."""
    page = context.call(Verbs.audit, cursor=context.arguments.cursor, count=context.arguments.limit)
    return context.answer_list(Verbs.audit, page.entries, _audit_table, "The audit is empty.", page=page)


# Tables


def _token_table(tokens: Sequence[Token], now: int) -> Table:
    grid = table("id", "name", "scopes", "worker", "used", "state", cut=("name", "worker"), folded=("scopes",))
    for token in tokens:
        used = "never" if token.used_at is None else views.ago(token.used_at, now)
        grid.add_row(token.id, cell(token.name), ", ".join(token.scopes), cell(token.worker or "any"), used, _state(token, now))
    return grid


def _state(token: Token, now: int) -> Text:
    if token.revoked_at is not None:
        return Text("revoked", style="red")
    if not token.valid(now):
        return Text("expired", style="yellow")
    valid = "good" if token.kind == "token" else token.kind
    return Text(valid if token.expires_at is None else f"{valid} until {views.moment(token.expires_at)}", style="green")


def _audit_table(entries: Sequence[AuditEntry], _: int) -> Table:
    grid = table("at", "actor", "what", "subject", cut=("actor", "subject"))
    for entry in entries:
        grid.add_row(views.moment(entry.at), cell(entry.actor), line(entry.what), cell(entry.subject))
    return grid
