"""The commands about webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from windlass.api.verbs import Verbs
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.context import CommandContext
from windlass.cli.output import cell, line, table
from windlass.cli.rows import OPERATE, Commands, edit, one_of, option
from windlass.cli.values import CURSOR, ID, duration, limit
from windlass.defaults import SECRET_OVERLAP
from windlass.dialects import formats
from windlass.durations import spelled
from windlass.errors import BadInput
from windlass.machine import ENDED
from windlass.model import Delivery, State, Webhook
from windlass.webhooks import STANDARD, check_secret, known_format

FIELDS = ("name", "url", "jobs", "queues", "states", "delays", "enabled", "secret", "format")
_LISTS = ("jobs", "queues", "states", "delays")
FIELD_OPTIONS = (
    edit("--name", help="the name of the endpoint (default: its host)"),
    edit("--job", dest="jobs", action="append", metavar="JOB", help="only runs of this job; may be repeated"),
    edit("--queue", dest="queues", action="append", metavar="QUEUE", help="only runs of this queue; may be repeated"),
    edit(
        "--state",
        dest="states",
        action="append",
        choices=list(State),
        metavar="STATE",
        help="send when a run enters this state (default: every end)",
    ),
    edit(
        "--delay",
        dest="delays",
        action="append",
        type=duration,
        metavar="TIME",
        help="the delay before the next attempt; may be repeated (default: 5s, 1m)",
    ),
    edit("--disabled", dest="enabled", action="store_false", help="send nothing until it is enabled"),
)

COMMANDS = Commands()
WEBHOOKS = COMMANDS.group(
    "webhooks",
    help="List, add and change webhooks, and list their deliveries",
    topic=OPERATE,
    meant_by=("hooks", "notify"),
    examples="""
    windlass webhooks add https://example.com/windlass
    windlass webhooks list
    windlass webhooks deliveries ID --status failed
    """,
)


def _fields(context: CommandContext) -> dict[str, Any]:
    """The fields of an endpoint that the command line has."""
    fields = context.fields(FIELDS)
    return fields | {name: tuple(fields[name]) for name in _LISTS if fields.get(name) is not None}


@WEBHOOKS.add(
    "add",
    option("url", metavar="URL", help="the address; one inside the network must be allowed by the hub"),
    edit("--secret", help="whsec_ and 24 to 64 bytes in base64, or what another format signs with (default: a new one)"),
    edit("--format", help="what is sent: standard, or the format of a dialect (default: standard)"),
    *FIELD_OPTIONS,
    meant_by=("create", "new"),
    examples="""
    windlass webhooks add https://example.com/windlass
    windlass webhooks add https://example.com/windlass --job mail --state failed --name alarms
    windlass webhooks add https://example.com/windlass --delay 5s --delay 5m --delay 1h --delay 1d
    """,
)
def add(context: CommandContext) -> int:
    """Add an endpoint for changes of runs, and print its id and its secret, which is not shown again."""
    fields = _fields(context)
    url = fields.pop("url")
    check_secret(known_format(fields.get("format", STANDARD.name), (STANDARD, *formats())), fields.get("secret"))
    webhook = context.call(Verbs.add_webhook, url, **fields)
    return _print_secret(context, webhook)


@WEBHOOKS.add(
    "set",
    ID,
    edit("--url", help="another address"),
    edit("--any-job", dest="jobs", action="store_const", const=None, help="runs of every job"),
    edit("--any-queue", dest="queues", action="store_const", const=None, help="runs of every queue"),
    edit("--enabled", action="store_true", help="enable it again: changes from now on are sent"),
    *FIELD_OPTIONS,
    examples="""
    windlass webhooks set ID --enabled
    windlass webhooks set ID --url https://example.com/other --any-job
    """,
)
def change(context: CommandContext) -> int:
    """Change fields of an endpoint, and leave the others."""
    fields, identity = _fields(context), context.arguments.id
    if not fields:
        raise BadInput("There is nothing to set.", hint="`windlass webhooks set --help` lists the options.")
    webhook = context.call(Verbs.set_webhook, identity, **fields)
    now = context.clock.now()
    return context.answer(Verbs.set_webhook, webhook, line(f"{webhook.id}: {webhook.name}, {_state(webhook, now).plain}"))


@WEBHOOKS.add("remove", ID, meant_by=("delete", "drop", "rm"), examples="windlass webhooks remove ID")
def remove(context: CommandContext) -> int:
    """Remove an endpoint and its deliveries."""
    identity = context.arguments.id
    context.call(Verbs.remove_webhook, identity)
    return context.answer(Verbs.remove_webhook, None, line(f"{identity} is removed."))


@WEBHOOKS.add(
    "rotate",
    ID,
    option("--overlap", type=duration, default=SECRET_OVERLAP, metavar="TIME", help="how long both sign (default: 1d)"),
    examples="windlass webhooks rotate ID\nwindlass webhooks rotate ID --overlap 0s",
)
def rotate(context: CommandContext) -> int:
    """Sign with a new secret, and print it; the old one signs too for a while."""
    identity = context.arguments.id
    webhook = context.call(Verbs.rotate_webhook, identity, overlap=context.arguments.overlap)
    return _print_secret(context, webhook)


def _print_secret(context: CommandContext, webhook: Webhook) -> int:
    context.answer(Verbs.add_webhook, webhook, f"{webhook.id}\n{webhook.secrets[0].key}")
    context.output.note("Give the secret to the receiver; it is not shown again.", style="yellow")
    return OK


@WEBHOOKS.add("list", examples="windlass webhooks list\nwindlass webhooks list --json")
def list_all(context: CommandContext) -> int:
    """List the endpoints, oldest first."""
    return context.answer_list(Verbs.webhooks, context.call(Verbs.webhooks), _webhook_table, "No webhooks.")


@WEBHOOKS.add(
    "deliveries",
    one_of(
        option("id", nargs="?", metavar="ID", help="the id of the webhook"),
        option("--run", dest="of_run", metavar="RUN", help="the deliveries of this run instead, oldest first"),
        required=True,
    ),
    option("--status", choices=("pending", "delivered", "failed"), help="only deliveries with this status"),
    limit(20),
    CURSOR,
    examples="""
    windlass webhooks deliveries ID --status failed
    windlass webhooks deliveries --run RUN --json
    """,
)
def deliveries(context: CommandContext) -> int:
    """List the deliveries to an endpoint, latest first, or those of a run."""
    arguments = context.arguments
    if arguments.of_run is not None:
        records = context.call(Verbs.deliveries_of, arguments.of_run)
        selection = [delivery for delivery in records if arguments.status in (None, delivery.status)]
        return context.answer_list(Verbs.deliveries_of, selection, _delivery_table, "No deliveries.")
    page = context.call(Verbs.deliveries, arguments.id, status=arguments.status, cursor=arguments.cursor, count=arguments.limit)
    return context.answer_list(Verbs.deliveries, page.deliveries, _delivery_table, "No deliveries.", page=page)


@WEBHOOKS.add("resend", option("id", metavar="ID", help="the id of the delivery"), examples="windlass webhooks resend ID")
def resend(context: CommandContext) -> int:
    """Send a delivery again; any running hub sends it."""
    identity = context.arguments.id
    delivery = context.call(Verbs.resend, identity)
    return context.answer(Verbs.resend, delivery, line(f"{delivery.id} is sent again."))


# Tables


def _webhook_table(webhooks: Sequence[Webhook], now: int) -> Table:
    grid = table("id", "name", "url", "sends", "tries", "state", cut=("name", "url"), folded=("sends", "state"))
    for webhook in webhooks:
        texts = (webhook.id, cell(webhook.name), cell(webhook.url), _filters(webhook))
        grid.add_row(*texts, "" if webhook.delays is None else str(len(webhook.delays) + 1), _state(webhook, now))
    return grid


def _filters(webhook: Webhook) -> str:
    states = "every end" if webhook.states == ENDED else webhook.format if webhook.states is None else ", ".join(webhook.states)
    jobs = "" if webhook.jobs is None else f" of {', '.join(webhook.jobs)}"
    queues = "" if webhook.queues is None else f" in {', '.join(webhook.queues)}"
    return line(states + jobs + queues)


def _state(webhook: Webhook, now: int) -> Text:
    if not webhook.enabled:
        return Text(line(f"disabled: {webhook.reason}") if webhook.reason else "disabled", style="yellow")
    if webhook.paused_until > now:
        return Text(f"paused for {spelled(webhook.paused_until - now)}, {webhook.failures:,} failures in a row", style="yellow")
    return Text("enabled", style="green")


_STYLES = {"pending": "", "delivered": "green", "failed": "red"}


def _delivery_table(records: Sequence[Delivery], now: int) -> Table:
    grid = table("id", "run", "type", "status", "tries", "made", "next", "answer", cut=("answer",))
    for delivery in records:
        answer = "" if delivery.answer is None else str(delivery.answer)
        texts = (delivery.id, delivery.run, delivery.type, Text(delivery.status, style=_STYLES[delivery.status]), str(delivery.tries))
        times = (views.ago(delivery.created_at, now), "" if delivery.next_at is None else views.ago(delivery.next_at, now))
        grid.add_row(*texts, *times, cell(delivery.error or answer))
    return grid
