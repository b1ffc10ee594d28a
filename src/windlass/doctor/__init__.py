"""Live checks for common traps, each with what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from windlass.answers import SEVERITIES, Finding
from windlass.doctor import limits, schedules, stores, webhooks, work, workers
from windlass.doctor.findings import note, problem
from windlass.doctor.subject import Subject
from windlass.errors import StoreBroken, StoreUnreachable, WindlassError


class Check(NamedTuple):
    """One check. A `deep` one takes its time, and runs only on request."""

    name: str
    looks_at: str
    find: Callable[[Subject], Awaitable[list[Finding]]]
    deep: bool = False


CHECKS = (
    Check("unclaimed", "Runs that wait and that no live worker takes", work.unclaimed),
    Check("unswept", "Runs that are due and have not been queued", work.unswept),
    Check("unrecovered", "Leases that were over long ago and have not been recovered", work.unrecovered),
    Check("lost_leases", "Leases that ran out although their worker is alive: it did not renew them in time", work.lost_leases),
    Check("lapses", "Jobs that lose their workers, as far as the last day is counted", work.lapses),
    Check("near_limits", "Jobs whose runs take nearly as long as they may", work.near_limits),
    Check("too_heavy", "Runs that need more of a resource than there will ever be", limits.too_heavy),
    Check("paused", "Pauses that keep runs waiting", limits.paused),
    Check("held_long", "Reservations of direct calls that are held for long, while the queue waits", limits.held_long),
    Check("silent", "Workers that are silent and still hold runs", workers.silent),
    Check("blocked", "Workers whose event loop is blocked", workers.blocked),
    Check("unable", "Workers that can start no thread or process, and so take nothing", workers.unable),
    Check("doubled", "Names that two live processes share: one has registered, and another sends metrics", workers.doubled),
    Check("skewed", "Workers whose clock differs from the store's", workers.skewed),
    Check("mixed", "Live workers of different versions", workers.mixed),
    Check("fires", "Schedules that never fire, that fire in the distant future only, or whose time has passed", schedules.fires),
    Check("skipping", "Schedules whose last instants were all skipped", schedules.skips),
    Check("unserved", "Schedules whose runs no worker would take", schedules.unserved),
    Check("endpoints", "Endpoints that do not accept their deliveries", webhooks.endpoints),
    Check("failed_deliveries", "Deliveries that were given up lately", webhooks.failed),
    Check("unsent", "Deliveries that no process tries to send", webhooks.unsent),
    Check("file", "The file, its disk, and other processes that have it open", stores.file),
    Check("server", "The server's version, connections, and whether it clears dead rows away", stores.server),
    Check("pooler", "A pooler before the server that is not in the settings", stores.pooler),
    Check("never_vacuumed", "Tables for which autovacuum is off", stores.never_vacuumed),
    Check("transactions", "Transactions that do not end, and so keep dead rows from being cleared away", stores.transactions),
    Check("dead_rows", "Dead rows that every claim must read over", stores.dead_rows),
    Check("clock", "This machine's clock against the store's", stores.clock),
    Check("future", "Changes with a time in the future: a clock was set back", stores.future),
    Check("step", "Whether the clock was set a short while ago, so that some things wait until it is trusted", stores.step),
    Check("consumers", "Consumers of the journal that are far behind", stores.consumers),
    Check("retention", "Ended runs that should have been removed already", stores.retention),
    Check("damages", "Damage of the file, every page of which is read", stores.damages, deep=True),
)
LIMIT = 20
"""Findings of one check that are listed."""


class Doctor:
    """The verb that runs the checks."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    async def examine(self, *, deep: bool = False) -> list[Finding]:
        """Present and coming problems, the worst first. It changes nothing; `deep` also reads every page of a SQLite file."""
        findings: list[Finding] = []
        for check in CHECKS:
            if deep or not check.deep:
                findings += [finding for finding in await self._findings(check) if finding not in findings]
        return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))

    async def _findings(self, check: Check) -> list[Finding]:
        """The findings of a check. One that fails does not keep the others from running."""
        try:
            return _cut(await check.find(self._subject))
        except StoreUnreachable:
            raise  # no check can run
        except StoreBroken as error:
            return [problem("store_broken", error.message, error.hint)]
        except WindlassError as error:
            return [_not_made(check, error.message, error.hint)]
        except OSError as error:
            return [_not_made(check, f"{error}.", "Give this user the right to read it.")]


def _not_made(check: Check, why: str, todo: str) -> Finding:
    return note("not_checked", f"Not checked: {check.looks_at}. {why}", todo)


def _cut(findings: list[Finding]) -> list[Finding]:
    more = len(findings) - LIMIT
    if more <= 0:
        return findings
    rest = note("and_more", f"{more:,} more findings like {findings[0].code!r} are not listed.", "Begin with those that are.")
    return [*findings[:LIMIT], rest]


__all__ = ["CHECKS", "Check", "Doctor", "Finding", "Subject"]
