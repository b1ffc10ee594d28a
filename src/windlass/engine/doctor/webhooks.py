"""Whether those are told who want to be."""

from __future__ import annotations

from windlass.durations import span
from windlass.engine.core import Core
from windlass.engine.doctor.findings import Finding, warning
from windlass.engine.webhooks import BROKEN
from windlass.model import Webhook

DAY = 24 * 3600 * 1000
UNSENT = 5 * 60_000
"""Milliseconds for which a delivery may be due before nobody is thought to send."""
COUNTED = 100
_LAST = 2**63 - 1


async def endpoints(core: Core) -> list[Finding]:
    """Endpoints that do not take what they are told."""
    return [found for webhook in await core.records.webhooks() if (found := _endpoint(webhook))]


def _endpoint(webhook: Webhook) -> Finding | None:
    if not webhook.enabled and webhook.reason:
        return warning(
            "webhook_disabled",
            f"Webhook {webhook.name} ({webhook.id}) is disabled: {webhook.reason}",
            f"When it is there again: windlass webhooks set {webhook.id} --enabled. Else remove it.",
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


async def failed(core: Core) -> list[Finding]:
    """Deliveries that were given up lately."""
    since, findings = core.clock.now() - DAY, []
    for webhook in await core.records.webhooks():
        given_up = await core.records.deliveries(webhook.id, "failed", _LAST, COUNTED)
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


async def unsent(core: Core) -> list[Finding]:
    """Deliveries that nobody tries to send."""
    now = core.clock.now()
    ready = {webhook.id: webhook for webhook in await core.records.webhooks() if webhook.enabled and webhook.paused_until <= now}
    due = await core.records.due_deliveries(sorted(ready), now - UNSENT, 1)
    return [
        warning(
            "deliveries_unsent",
            f"A delivery to webhook {ready[one.webhook].name} ({one.webhook}) has been due for {span(now - one.next_at)}, "
            "and nobody has tried it.",
            "Keep a hub running: it sends them.",
            webhook=one.webhook,
            since=one.next_at,
        )
        for one in due
    ]
