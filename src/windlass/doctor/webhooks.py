"""Whether webhooks are delivered."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.answers import Finding
from windlass.doctor.findings import warning
from windlass.doctor.subject import Subject
from windlass.durations import span
from windlass.model import Webhook
from windlass.store.records.webhooks import BROKEN

DAY = 24 * 3600 * 1000
UNSENT = 5 * 60_000
"""Milliseconds for which a delivery may be due before it counts as unsent."""
COUNTED = 100
NAMED = 5
_LAST = 2**63 - 1


async def endpoints(subject: Subject) -> list[Finding]:
    webhooks = await subject.records.webhooks.all()
    findings = [_endpoint(webhook) for webhook in webhooks if webhook.origin is None]
    return [finding for finding in (*findings, _origins(webhooks)) if finding is not None]


def _origins(webhooks: Iterable[Webhook]) -> Finding | None:
    """One finding for all addresses, since every run may name another one."""
    failing = sorted(webhook.origin for webhook in webhooks if webhook.origin and webhook.failures >= BROKEN)
    if not failing:
        return None
    return warning(
        "notify_fails",
        f"Addresses that runs notify fail: {', '.join(failing[:NAMED])}{' and others' if len(failing) > NAMED else ''}.",
        "See what was answered: windlass webhooks deliveries --run ID",
        origins=failing[:NAMED],
    )


def _endpoint(webhook: Webhook) -> Finding | None:
    if not webhook.enabled and webhook.reason:
        return warning(
            "webhook_disabled",
            f"Webhook {webhook.name} ({webhook.id}) is disabled: {webhook.reason}",
            f"When it works again: windlass webhooks set {webhook.id} --enabled. Else remove it.",
            webhook=webhook.id,
        )
    if webhook.enabled and webhook.failures >= BROKEN:
        return warning(
            "webhook_fails",
            f"Webhook {webhook.name} ({webhook.id}) has failed {webhook.failures:,} times in a row.",
            f"See what it answers: windlass webhooks deliveries {webhook.id}",
            webhook=webhook.id,
            failures=webhook.failures,
        )
    return None


async def failed(subject: Subject) -> list[Finding]:
    since, findings = subject.clock.now() - DAY, []
    for webhook in await subject.records.webhooks.all():
        if webhook.origin is not None:
            continue  # those of a run are listed with the run
        given_up = await subject.records.deliveries.page(webhook.id, "failed", _LAST, COUNTED)
        number = sum(1 for delivery in given_up if (delivery.finished_at or 0) >= since)
        if number:
            findings.append(
                warning(
                    "deliveries_failed",
                    f"{number}{' or more' if number == COUNTED else ''} deliveries to webhook {webhook.name} ({webhook.id}) "
                    "were given up in the last day.",
                    f"See why, and send them again: windlass webhooks deliveries {webhook.id} --status failed",
                    webhook=webhook.id,
                    deliveries=number,
                )
            )
    return findings


async def unsent(subject: Subject) -> list[Finding]:
    now = subject.clock.now()
    ready = {webhook.id: webhook for webhook in await subject.records.webhooks.all() if webhook.enabled and webhook.paused_until <= now}
    due = await subject.records.deliveries.due(sorted(ready), now - UNSENT, 1)
    of_runs = [one for one in due if ready[one.webhook].origin is not None]  # the oldest speaks for all
    return [
        warning(
            "deliveries_unsent",
            f"A delivery to {_place(ready[one.webhook])} has been due for {span(now - one.next_at)}, and no process has tried it.",
            "Keep a hub running: it sends them.",
            webhook=one.webhook,
            since=one.next_at,
        )
        for one in due
        if one not in of_runs[1:]
    ]


def _place(webhook: Webhook) -> str:
    return f"webhook {webhook.name} ({webhook.id})" if webhook.origin is None else f"{webhook.name}, which a run names,"
