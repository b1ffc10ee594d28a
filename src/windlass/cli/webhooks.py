"""The commands about webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from windlass import config
from windlass.api.verbs import Verbs
from windlass.api.views import current
from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.output import cell, line, table
from windlass.cli.shell import Shell
from windlass.errors import BadInput
from windlass.machine import ENDED
from windlass.model import Delivery, Webhook
from windlass.store.base import run_sync

WORDS = ("name", "url", "jobs", "queues", "states", "delays", "enabled", "secret")
_LISTS = ("jobs", "queues", "states", "delays")


def _words(shell: Shell) -> dict[str, Any]:
    """What the command line says of an endpoint, and nothing that it leaves out."""
    given = vars(shell.arguments)
    said = {word: given[word] for word in WORDS if word in given}
    return said | {word: tuple(said[word]) for word in _LISTS if said.get(word) is not None}


def add(shell: Shell) -> int:
    """Tell an endpoint of changes, and print its id and its secret, which is not shown again."""
    words = _words(shell)
    url = words.pop("url")
    with shell.engine() as engine:
        made = run_sync(shell.act(engine, "add", f"webhook {url:.100}").add_webhook(url, **words))
    return _tell_secret(shell, made)


def change(shell: Shell) -> int:
    """Change what is said of an endpoint, and leave the rest."""
    words, identity = _words(shell), shell.arguments.id
    if not words:
        raise BadInput("There is nothing to set.", hint="`windlass webhooks set --help` lists what can be said.")
    with shell.engine() as engine:
        made = run_sync(shell.act(engine, "edit", f"webhook {identity:.100}").set_webhook(identity, **words))
    now = shell.clock.now()
    return shell.answer(Verbs.set_webhook, current(made, now), line(f"{made.id}: {made.name}, {_state(made, now).plain}"))


def remove(shell: Shell) -> int:
    """Forget an endpoint and what it was told."""
    identity = shell.arguments.id
    with shell.engine() as engine:
        run_sync(shell.act(engine, "remove", f"webhook {identity:.100}").remove_webhook(identity))
    return shell.answer(Verbs.remove_webhook, None, line(f"{identity} is removed."))


def rotate(shell: Shell) -> int:
    """Sign with a new secret, and print it; the old one signs too for a while."""
    identity = shell.arguments.id
    with shell.engine() as engine:
        acting = shell.act(engine, "rotate", f"webhook {identity:.100}")
        made = run_sync(acting.rotate_webhook(identity, overlap=shell.arguments.overlap))
    return _tell_secret(shell, made)


def _tell_secret(shell: Shell, made: Webhook) -> int:
    shell.answer(Verbs.add_webhook, current(made, shell.clock.now()), f"{made.id}\n{made.secrets[0].key}")
    shell.output.note("Give the secret to the receiver; it is not shown again.", style="yellow")
    return OK


def list_all(shell: Shell) -> int:
    """List the endpoints, oldest first."""
    with shell.engine() as engine:
        found = [current(webhook, shell.clock.now()) for webhook in run_sync(engine.webhooks())]
    return shell.answer_list(Verbs.webhooks, found, _webhook_table, "No webhooks.")


def deliveries(shell: Shell) -> int:
    """List what an endpoint was told, latest first."""
    given = shell.arguments
    with shell.engine() as engine:
        page = run_sync(engine.deliveries(given.id, status=given.status, cursor=given.cursor, count=given.limit))
    shell.answer_list(Verbs.deliveries, page.deliveries, _delivery_table, "No deliveries.", page=page)
    if page.cursor is not None:
        shell.output.note(f"There are more: --cursor {page.cursor}")
    return OK


def resend(shell: Shell) -> int:
    """Have a delivery tried again from now on, by whichever hub runs."""
    identity = shell.arguments.id
    with shell.engine() as engine:
        made = run_sync(shell.act(engine, "resend", f"delivery {identity:.100}").resend(identity))
    return shell.answer(Verbs.resend, made, line(f"{made.id} is sent again."))


# How they look


def _webhook_table(webhooks: Sequence[Webhook], now: int) -> Table:
    made = table("id", "name", "url", "told of", "tries", "state", cut=("name", "url"), folded=("told of", "state"))
    for webhook in webhooks:
        texts = (webhook.id, cell(webhook.name), cell(webhook.url), _filters(webhook))
        made.add_row(*texts, str(len(webhook.delays) + 1), _state(webhook, now))
    return made


def _filters(webhook: Webhook) -> str:
    states = "every end" if webhook.states == ENDED else ", ".join(webhook.states)
    jobs = "" if webhook.jobs is None else f" of {', '.join(webhook.jobs)}"
    queues = "" if webhook.queues is None else f" in {', '.join(webhook.queues)}"
    return line(states + jobs + queues)


def _state(webhook: Webhook, now: int) -> Text:
    if not webhook.enabled:
        return Text(line(f"disabled: {webhook.reason}") if webhook.reason else "disabled", style="yellow")
    if webhook.paused_until > now:
        return Text(f"left alone for {config.spelled(webhook.paused_until - now)}, {webhook.failures:,} failures in a row", style="yellow")
    return Text("enabled", style="green")


_STYLES = {"pending": "", "delivered": "green", "failed": "red"}


def _delivery_table(found: Sequence[Delivery], now: int) -> Table:
    made = table("id", "run", "type", "status", "tries", "made", "next", "said", cut=("said",))
    for delivery in found:
        said = "" if delivery.answer is None else str(delivery.answer)
        texts = (delivery.id, delivery.run, delivery.type, Text(delivery.status, style=_STYLES[delivery.status]), str(delivery.tries))
        times = (views.ago(delivery.created_at, now), "" if delivery.next_at is None else views.ago(delivery.next_at, now))
        made.add_row(*texts, *times, cell(delivery.error or said))
    return made
