"""Live checks for the traps that people fall into, each with what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from windlass.engine.doctor import limits, schedules, stores, webhooks, work, workers
from windlass.engine.doctor.findings import SEVERITIES, Finding, note, problem
from windlass.engine.retention import Keeping
from windlass.errors import StoreBroken, StoreUnreachable, WindlassError

Check = Callable[[Keeping], Awaitable[list[Finding]]]

CHECKS: tuple[Check, ...] = (
    work.unclaimed,
    work.unswept,
    work.unrecovered,
    work.lost_leases,
    work.lapses,
    work.near_limits,
    limits.too_heavy,
    limits.paused,
    limits.held_long,
    workers.silent,
    workers.blocked,
    workers.unable,
    workers.doubled,
    workers.skewed,
    workers.mixed,
    schedules.fires,
    schedules.skips,
    schedules.unserved,
    webhooks.endpoints,
    webhooks.failed,
    webhooks.unsent,
    stores.file,
    stores.server,
    stores.pooler,
    stores.never_vacuumed,
    stores.transactions,
    stores.dead_rows,
    stores.clock,
    stores.future,
    stores.step,
    stores.followers,
    stores.retention,
)
MOST = 20
"""Findings of one check that are listed."""


class Doctor(Keeping):
    """The verb of those who want to know what is wrong."""

    async def doctor(self, *, deep: bool = False) -> list[Finding]:
        """What is wrong or will be, the worst first. It changes nothing; `deep` also reads every page of a SQLite file."""
        found: list[Finding] = []
        for check in (*CHECKS, stores.damages) if deep else CHECKS:
            found += [finding for finding in await self._findings(check) if finding not in found]
        return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))

    async def _findings(self, check: Check) -> list[Finding]:
        """What a check finds. One that cannot be made does not keep the others from being made."""
        try:
            return _cut(await check(self))
        except StoreUnreachable:
            raise  # no check can be made
        except StoreBroken as error:
            return [problem("store_broken", error.message, error.hint)]
        except WindlassError as error:
            return [_not_made(check, error.message, error.hint)]
        except OSError as error:
            return [_not_made(check, f"{error}.", "Give this user the right to look.")]


def _not_made(check: Check, why: str, todo: str) -> Finding:
    return note("not_checked", f"Not looked at: {(check.__doc__ or '').rstrip('.')}. {why}", todo)


def _cut(found: list[Finding]) -> list[Finding]:
    more = len(found) - MOST
    if more <= 0:
        return found
    rest = note("and_more", f"{more:,} more findings like {found[0].code!r} are not listed.", "Begin with those that are.")
    return [*found[:MOST], rest]


__all__ = ["CHECKS", "Doctor", "Finding"]
