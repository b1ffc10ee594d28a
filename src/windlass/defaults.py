"""Defaults of verbs."""

QUEUE, ATTEMPTS = "default", 5

LEASE = 30_000
"""Milliseconds for which a claim holds a run, unless its worker sets another time."""

SLOT_LEASE = 30_000
"""Milliseconds for which a direct call holds its slot, unless it sets another time."""

MAX_WAIT = 60_000
"""Milliseconds after which a run that lacks several resources has them reserved, unless the resource sets another time."""

TOKEN_OVERLAP = 24 * 3_600_000
"""Milliseconds for which a rotated token stays valid."""

SECRET_OVERLAP = 24 * 3_600_000
"""Milliseconds for which a webhook is also signed with the previous secret."""

DELIVERY_DELAYS = (5_000, 60_000)
"""Milliseconds before the second attempt of a delivery and the third, which is the last."""

MAX_MISSED = 100
"""Missed instants of a schedule that become runs at most, with `missed="all"`."""

PATCHABLE = ("payload", "priority", "due_at", "max_attempts", "queue")
"""The fields of a waiting run that can be changed."""

SCHEDULE_EDITABLE = ("kind", "job", "expr", "zone", "payload", "options", "missed", "max_missed", "max_age", "overlap", "jitter", "enabled")
"""The fields of a schedule that can be changed."""

WEBHOOK_EDITABLE = ("name", "url", "jobs", "queues", "states", "delays", "enabled")
"""The fields of a webhook that can be changed."""
