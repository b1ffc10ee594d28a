"""Whether the store is sound: the file or the server, the clock, and the consumers of the journal."""

from __future__ import annotations

from shlex import quote

from windlass.answers import Finding
from windlass.doctor.findings import note, problem, runs, warning
from windlass.doctor.subject import Subject
from windlass.durations import span
from windlass.model import STANDARD
from windlass.steady import LASTING
from windlass.store.disks import NETWORK, VOLATILE, FileEnvironment, ForeignProcess, look_around
from windlass.store.records.doctor import File, Server
from windlass.store.records.webhooks import format_of

MIB = 2**20
LONG_LOG = 256 * MIB
FULL, NEARLY_FULL = 200 * MIB, 2_000 * MIB
"""Bytes left on a disk below which commits will soon fail, or below which it is a warning."""

OLDEST_SERVER = 140_000
BUSY, CROWDED = 0.8, 0.95
"""The part of a server's connections in use from which it is a warning, or from which the next one may be refused."""
LONG, FAR_TOO_LONG = 5 * 60_000, 3_600_000
DEAD, DEAD_SHARE = 100_000, 0.2

APART = 5_000
"""Milliseconds between two clocks that matter."""
BEHIND = 5 * 60_000
"""Milliseconds by which consumers of the journal may be behind it."""
UNPRUNED, COUNTED = 10 * 60_000, 1_000
"""Milliseconds for which an expired run may still exist, and how many of each kind are counted that exist for longer."""


# SQLite


async def file(subject: Subject) -> list[Finding]:
    record = await subject.records.doctor.file()
    return [] if record is None else [*_opened(record), *judged(record.path, look_around(record.path))]


def _opened(record: File) -> list[Finding]:
    findings = []
    if record.mode != "wal":
        findings.append(
            problem(
                "no_write_ahead_log",
                f"{record.path} has the journal mode {record.mode!r}, so readers and writers stop each other.",
                "Put it on a local disk, stop everything that uses it, and open it by windlass again.",
                mode=record.mode,
            )
        )
    if record.synchronous < 2:
        findings.append(
            warning(
                "not_synchronous",
                f"{record.path} is opened with synchronous = {record.synchronous}: a power cut can cost runs that were accepted.",
                "Open it with synchronous='FULL', which is the default.",
                synchronous=record.synchronous,
            )
        )
    return findings


def judged(path: str, around: FileEnvironment) -> list[Finding]:
    """The problems of a database file's place."""
    findings = [_engine(path, stranger) for stranger in around.foreign_processes]
    if around.kind in NETWORK:
        findings.append(
            problem(
                "network_disk",
                f"{path} is on a network disk ({around.kind}), where the locks and the log of SQLite do not hold: it can be damaged.",
                "Move it to a local disk; to share work between machines, use PostgreSQL or a hub.",
                kind=around.kind,
            )
        )
    if around.kind in VOLATILE:
        findings.append(
            warning(
                "volatile_disk",
                f"{path} is in memory ({around.kind}): everything in it is gone when the machine restarts.",
                "Move it to a disk that lasts.",
                kind=around.kind,
            )
        )
    if around.log > LONG_LOG:
        findings.append(
            warning(
                "long_log",
                f"The write-ahead log of {path} has {around.log // MIB:,} MiB: it cannot be emptied while a reader is active.",
                "Find the program that holds a transaction open on this file, and end it.",
                bytes=around.log,
            )
        )
    if around.readable:
        findings.append(
            warning(
                "readable_by_others",
                f"Others than its owner can open {path}: payloads, results and the secrets of webhooks are in it.",
                f"chmod 600 {' '.join(map(quote, around.readable))}, unless several users share it on purpose.",
                files=list(around.readable),
            )
        )
    return [*findings, *_room(path, around)]


def _room(path: str, around: FileEnvironment) -> list[Finding]:
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


def _engine(path: str, stranger: ForeignProcess) -> Finding:
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


async def damages(subject: Subject) -> list[Finding]:
    lines = await subject.records.doctor.damages()
    if not lines:
        return []
    return [
        problem(
            "damaged",
            f"The file is damaged: {'; '.join(lines)}.",
            "Stop every process that uses it, keep a copy, and put a backup in its place: windlass restore FILE --replace",
            damages=lines,
        )
    ]


# PostgreSQL


async def server(subject: Subject) -> list[Finding]:
    record = await subject.records.doctor.server()
    return [] if record is None else [*_version(record), *_connections(record), *_vacuum(record)]


async def pooler(subject: Subject) -> list[Finding]:
    if not subject.pooler:  # else the server's process is not the one that the connection names
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
    if server.connections < BUSY * server.limit:
        return []
    return [
        (problem if server.connections >= CROWDED * server.limit else warning)(
            "connections_used_up",
            f"{server.connections} of the server's {server.limit} connections are in use.",
            "Raise max_connections, put a pooler in between, or let workers come through a hub.",
            connections=server.connections,
            limit=server.limit,
        )
    ]


def _vacuum(server: Server) -> list[Finding]:
    if server.vacuums:
        return []
    text = "Autovacuum is off on this server: dead rows are never cleared away, and claims become slower and slower."
    return [problem("autovacuum_off", text, "Set autovacuum = on and track_counts = on, and reload the server.")]


async def never_vacuumed(subject: Subject) -> list[Finding]:
    return [
        problem(
            "autovacuum_off",
            f"Autovacuum is off for the table {table}: its dead rows are never cleared away, and claims become slower and slower.",
            f"alter table {table} reset (autovacuum_enabled);",
            table=table,
        )
        for table in await subject.records.doctor.never_vacuumed()
    ]


async def transactions(subject: Subject) -> list[Finding]:
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
        for one in await subject.records.doctor.long_transactions(LONG, 5)
    ]


async def dead_rows(subject: Subject) -> list[Finding]:
    dead, live = await subject.records.doctor.dead_rows()
    if dead <= DEAD + DEAD_SHARE * live:
        return []
    return [
        warning(
            "dead_rows",
            f"The table of runs has {dead:,} dead rows and {live:,} live ones: claims read over the dead ones.",
            "Look for a long transaction that holds autovacuum back, and keep a worker or a hub running: they remove dead rows.",
            dead=dead,
            live=live,
        )
    ]


# Time


async def clock(subject: Subject) -> list[Finding]:
    wall, there = getattr(subject.clock, "wall", None), await subject.records.doctor.store_time()
    if wall is None or there is None or abs(apart := wall() - there) <= APART:
        return []
    return [
        warning(
            "clock_skew",
            f"This machine's clock is {span(abs(apart))} {'ahead of' if apart > 0 else 'behind'} the database's.",
            "Synchronize both by NTP (chrony, systemd-timesyncd). windlass goes by the database's, your own code by the machine's.",
            ahead_ms=apart,
        )
    ]


async def future(subject: Subject) -> list[Finding]:
    newest = await subject.records.doctor.newest_entry()
    ahead = 0 if newest is None else newest - subject.clock.now()
    if ahead <= APART:
        return []
    return [
        warning(
            "clock_went_back",
            f"The last change has a time that is {span(ahead)} in the future: the clock was ahead then, or was set back since.",
            "Synchronize the clock by NTP. Until it has caught up, delays and schedules wait for longer than they should.",
            ahead_ms=ahead,
        )
    ]


async def step(subject: Subject) -> list[Finding]:
    earliest, latest = await subject.steady.bounds(subject.records.scales)
    scale = subject.steady.scale
    if earliest == latest or scale is None or scale.since is None:
        return []
    since, ahead = subject.clock.monotonic() - scale.since, (scale.other or 0) - scale.base
    return [
        warning(
            "clock_was_set",
            f"The clock was set {span(abs(ahead))} {'ahead' if ahead > 0 else 'back'}, {span(since)} ago or a little earlier. Until it has "
            f"lasted for {span(LASTING)}, no ended run is removed and no key becomes free because of it.",
            f"If it is right now, wait for {span(max(0, LASTING - since))}. If not, synchronize it by NTP: nothing was lost.",
            ahead_ms=ahead,
            since_ms=since,
        )
    ]


# Consumers of the journal


async def consumers(subject: Subject) -> list[Finding]:
    formats = {webhook.format for webhook in await subject.records.webhooks.all() if webhook.enabled}
    findings = []
    for name in sorted(await subject.records.journal.consumers()):
        unread = await subject.unread(name)
        behind = subject.clock.now() - unread.at if unread is not None else 0
        format = format_of(name)
        if behind > BEHIND and (format is None or format in formats):
            findings.append(
                (note if format is None else warning)(
                    "consumer_behind",
                    f"The consumer {name} of the journal is {span(behind)} behind.",
                    "Keep a hub running on this store; if one does, look into its log."
                    if format in (None, STANDARD)
                    else f"Keep a hub running that has the format {format}; if one does, look into its log.",
                    consumer=name,
                    behind_ms=behind,
                )
            )
    return findings


# Retention


async def retention(subject: Subject) -> list[Finding]:
    now = (await subject.steady.bounds(subject.records.scales)).earliest
    over = await subject.overdue(now - UNPRUNED, COUNTED)
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
