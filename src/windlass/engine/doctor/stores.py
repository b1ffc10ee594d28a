"""Whether what everything is kept in is sound: the file or the server, the clock, and those who follow the journal."""

from __future__ import annotations

from shlex import quote

from windlass.durations import span
from windlass.engine.core import Core
from windlass.engine.doctor.findings import Finding, note, problem, runs, warning
from windlass.engine.reading import Reading
from windlass.engine.retention import Keeping
from windlass.engine.steady import LASTING
from windlass.store.disks import NETWORK, VOLATILE, Stranger, Surroundings, look_around
from windlass.store.doctor import File, Server

MIB = 2**20
LONG_LOG = 256 * MIB
FULL, NEARLY_FULL = 200 * MIB, 2_000 * MIB
"""Bytes left on a disk below which commits will soon fail, or below which it is time to look."""

OLDEST_SERVER = 140_000
BUSY, CROWDED = 0.8, 0.95
"""The part of a server's connections that are in use when it is time to look, or when the next one may be refused."""
LONG, FAR_TOO_LONG = 5 * 60_000, 3_600_000
DEAD, DEAD_SHARE = 100_000, 0.2

APART = 5_000
"""Milliseconds between two clocks that matter."""
BEHIND = 5 * 60_000
"""Milliseconds by which those who follow the journal may be behind it."""
UNPRUNED, COUNTED = 10 * 60_000, 1_000
"""Milliseconds for which a run may be there that is past its retention, and how many of each kind are counted that are there for longer."""


# SQLite


async def file(core: Core) -> list[Finding]:
    """The file, its disk, and who else has it open."""
    found = await core.records.file()
    return [] if found is None else [*_opened(found), *judged(found.path, look_around(found.path))]


def _opened(found: File) -> list[Finding]:
    findings = []
    if found.mode != "wal":
        findings.append(
            problem(
                "no_write_ahead_log",
                f"{found.path} has the journal mode {found.mode!r}, so readers and writers stop each other.",
                "Put it on a local disk, stop everything that uses it, and open it by windlass again.",
                mode=found.mode,
            )
        )
    if found.synchronous < 2:
        findings.append(
            warning(
                "not_synchronous",
                f"{found.path} is opened with synchronous = {found.synchronous}: a power cut can cost runs that were accepted.",
                "Open it with synchronous='FULL', which is the default.",
                synchronous=found.synchronous,
            )
        )
    return findings


def judged(path: str, around: Surroundings) -> list[Finding]:
    """What is wrong with how a database file lies."""
    found = [_engine(path, stranger) for stranger in around.strangers]
    if around.kind in NETWORK:
        found.append(
            problem(
                "network_disk",
                f"{path} is on a network disk ({around.kind}), where the locks and the log of SQLite do not hold: it can be damaged.",
                "Move it to a local disk; to share work between machines, use PostgreSQL or a hub.",
                kind=around.kind,
            )
        )
    if around.kind in VOLATILE:
        found.append(
            warning(
                "volatile_disk",
                f"{path} is in memory ({around.kind}): everything in it is gone when the machine restarts.",
                "Move it to a disk that lasts.",
                kind=around.kind,
            )
        )
    if around.log > LONG_LOG:
        found.append(
            warning(
                "long_log",
                f"The write-ahead log of {path} has {around.log // MIB:,} MiB: it cannot be emptied while somebody reads.",
                "Look for a program that holds a transaction open on this file, and end it.",
                bytes=around.log,
            )
        )
    if around.readable:
        found.append(
            warning(
                "readable_by_others",
                f"Others than its owner can open {path}: payloads, results and the secrets of webhooks are in it.",
                f"chmod 600 {' '.join(map(quote, around.readable))}, unless several users share it on purpose.",
                files=list(around.readable),
            )
        )
    return [*found, *_room(path, around)]


def _room(path: str, around: Surroundings) -> list[Finding]:
    if around.free >= NEARLY_FULL and around.free * 50 >= around.total:
        return []
    worst = problem if around.free < FULL else warning
    return [
        worst(
            "disk_nearly_full",
            f"The disk of {path} has {around.free // MIB:,} MiB left of {around.total // MIB:,}.",
            "Free some space, or move the store to a larger disk: when none is left, nothing is accepted any more.",
            free=around.free,
            total=around.total,
        )
    ]


def _engine(path: str, stranger: Stranger) -> Finding:
    pid, command, version, old = stranger
    by = f"SQLite {version}" if version else "another SQLite"
    return (problem if old else warning)(
        "another_engine",
        f"Process {pid} ({command}) has {path} open by {by}, not by windlass."
        + (" That version can lose committed rows of a file that others write, too." if old else ""),
        "Close it there. To look into the file, use a copy: windlass backup FILE.",
        pid=pid,
        command=command,
        version=version,
    )


async def damages(core: Core) -> list[Finding]:
    """What is damaged in the file, every page of which is read."""
    found = await core.records.damages()
    if not found:
        return []
    return [
        problem(
            "damaged",
            f"The file is damaged: {'; '.join(found)}.",
            "Stop every process that uses it, keep a copy, and put a backup in its place: windlass restore FILE --replace",
            damages=found,
        )
    ]


# PostgreSQL


async def server(core: Core) -> list[Finding]:
    """The server's version, connections, and whether it clears dead rows away."""
    found = await core.records.server()
    return [] if found is None else [*_version(found), *_connections(found), *_vacuum(found)]


async def pooler(core: Core) -> list[Finding]:
    """A pooler before the server that no setting speaks of: the server's process is not the one that the connection names."""
    if not getattr(core.home.store, "behind_pooler", False):
        return []
    return [
        note(
            "pooler",
            "A pooler is between this process and PostgreSQL, and pooled is not set.",
            "If it shares connections by transaction, set pooled = true, or add ?pooled=true to the store's address.",
        )
    ]


def _version(server: Server) -> list[Finding]:
    if server.version >= OLDEST_SERVER:
        return []
    text = f"The server is PostgreSQL {server.version // 10_000}."
    return [problem("old_server", text, f"Upgrade it to {OLDEST_SERVER // 10_000} or newer.", version=server.version)]


def _connections(server: Server) -> list[Finding]:
    if server.connections < BUSY * server.most:
        return []
    return [
        (problem if server.connections >= CROWDED * server.most else warning)(
            "connections_used_up",
            f"{server.connections} of the server's {server.most} connections are in use.",
            "Raise max_connections, put a pooler in between, or let workers come through a hub.",
            connections=server.connections,
            most=server.most,
        )
    ]


def _vacuum(server: Server) -> list[Finding]:
    if server.vacuums:
        return []
    text = "Autovacuum is off on this server: dead rows are never cleared away, and claims become slower and slower."
    return [problem("autovacuum_off", text, "Set autovacuum = on and track_counts = on, and reload the server.")]


async def never_vacuumed(core: Core) -> list[Finding]:
    """Tables for which autovacuum is off."""
    return [
        problem(
            "autovacuum_off",
            f"Autovacuum is off for the table {table}: its dead rows are never cleared away, and claims become slower and slower.",
            f"alter table {table} reset (autovacuum_enabled);",
            table=table,
        )
        for table in await core.records.never_vacuumed()
    ]


async def transactions(core: Core) -> list[Finding]:
    """Transactions that do not end, and so keep dead rows from being cleared away."""
    return [
        (problem if one.age > FAR_TOO_LONG else warning)(
            "long_transaction",
            f"The server's process {one.pid} ({one.application or 'unnamed'}, {one.state}) has had a transaction open for {span(one.age)}: "
            "no dead row can be cleared away meanwhile, and claims become slower.",
            f"End it where it was begun, or: select pg_terminate_backend({one.pid});",
            pid=one.pid,
            application=one.application,
            state=one.state,
            age_ms=one.age,
        )
        for one in await core.records.long_transactions(LONG, 5)
    ]


async def dead_rows(core: Core) -> list[Finding]:
    """Dead rows that every claim must read over."""
    dead, live = await core.records.dead_rows()
    if dead <= DEAD + DEAD_SHARE * live:
        return []
    return [
        warning(
            "dead_rows",
            f"The table of runs has {dead:,} dead rows and {live:,} live ones: claims read over the dead ones.",
            "Look for a long transaction that holds autovacuum back, and keep a worker or a hub running: they tidy up.",
            dead=dead,
            live=live,
        )
    ]


# Time


async def clock(core: Core) -> list[Finding]:
    """This machine's clock against the store's."""
    wall, there = getattr(core.clock, "wall", None), await core.records.store_time()
    if wall is None or there is None or abs(apart := wall() - there) <= APART:
        return []
    return [
        warning(
            "clock_skew",
            f"This machine's clock is {span(abs(apart))} {'ahead of' if apart > 0 else 'behind'} the database's.",
            "Have both set over the network (chrony, systemd-timesyncd). windlass goes by the database's, your own code by the machine's.",
            ahead_ms=apart,
        )
    ]


async def future(core: Core) -> list[Finding]:
    """What has happened later than now: a clock was set back."""
    newest = await core.records.newest_entry()
    ahead = 0 if newest is None else newest - core.clock.now()
    if ahead <= APART:
        return []
    return [
        warning(
            "clock_went_back",
            f"The last change was written down {span(ahead)} from now: the clock was ahead then, or has been set back.",
            "Have the clock set over the network. Until it has caught up, delays and schedules wait for longer than they should.",
            ahead_ms=ahead,
        )
    ]


async def step(core: Core) -> list[Finding]:
    """Whether the clock was set a short while ago, so that some things wait until it is believed."""
    earliest, latest = await core.bounds()
    scale = core.steady.scale
    if earliest == latest or scale is None or scale.since is None:
        return []
    since, ahead = core.clock.monotonic() - scale.since, (scale.other or 0) - scale.base
    return [
        warning(
            "clock_was_set",
            f"The clock was set {span(abs(ahead))} {'ahead' if ahead > 0 else 'back'}, {span(since)} ago or a little earlier. Until it has "
            f"lasted for {span(LASTING)}, no ended run is removed and no key becomes free because of it.",
            f"If it is right now, wait for {span(max(0, LASTING - since))}. If not, have it set over the network: nothing was lost.",
            ahead_ms=ahead,
            since_ms=since,
        )
    ]


# Those who follow the journal


async def followers(core: Reading) -> list[Finding]:
    """Those who follow the journal and are far behind."""
    told = any(webhook.enabled for webhook in await core.records.webhooks())
    findings = []
    for name in sorted(await core.records.followers()):
        unread = (await core.follow(name, count=1))[0].entries
        behind = core.clock.now() - unread[0].at if unread else 0
        if behind > BEHIND and (told or name != "webhooks"):
            findings.append(
                (warning if name == "webhooks" else note)(
                    "follower_behind",
                    f"What follows the journal for {name} is {span(behind)} behind.",
                    "Keep a hub running on this store; if one does, look into its log.",
                    follower=name,
                    behind_ms=behind,
                )
            )
    return findings


# Retention


async def retention(core: Keeping) -> list[Finding]:
    """Ended runs that should have been removed already."""
    now = (await core.bounds()).earliest
    over = [
        run.at + shelf.keep
        for shelf in (await core.shelves(now - UNPRUNED)).values()
        for run in await shelf.page((0, 0), COUNTED)
        if not run.needed
    ]
    if not over:
        return []
    late_by = now - min(over)
    return [
        warning(
            "retention_behind",
            f"Retention is behind: {runs(len(over), COUNTED)} should be gone already, the oldest since {span(late_by)} ago.",
            "Keep a worker or a hub running on this store: they remove what is past its time. If one does, look into its log, and whether "
            "the disk is slow; `windlass retention` shows how long ended runs are kept.",
            runs=len(over),
            late_ms=late_by,
        )
    ]
