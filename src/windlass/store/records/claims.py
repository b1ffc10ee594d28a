"""Rows of a claim: the candidates, read without locks, and the claim itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from windlass.model import Run
from windlass.payload import slices
from windlass.store.base import Row, Statement, Value
from windlass.store.columns import USUAL
from windlass.store.records.batches import Rows
from windlass.store.records.limiters import WITHIN
from windlass.store.rows import claimed_of, pack, run_of, split_time

BATCHES: Mapping[str, tuple[str, ...]] = {
    "claim": ("remember_claims", "claim", "claim_each", *WITHIN, "journal"),
    "correct": ("correct_claims",),
}

_IN_ORDER = itemgetter(*map(Run.__struct_fields__.index, ("priority_key", "position", "seq")))
FIRST = (-(2**63), -(2**63), 0)
"""The position before every run of a queue."""


class Head(NamedTuple):
    """A queued run's position, and what decides whether it may pass."""

    seq: int
    priority_key: int
    position: int
    lane: int
    due_at: int
    keys: str | None
    size: int = 0  # of its payload, in bytes

    @property
    def place(self) -> tuple[int, int, int]:
        return self.priority_key, self.position, self.seq


_LANE = Head._fields.index("lane")
_PLACE = itemgetter(*map(Head._fields.index, ("priority_key", "position", "seq")))


class Scan(NamedTuple):
    """What to read of the queues: up to `limit` runs of these lanes after a position, and the first run of each lane that is shut."""

    lanes: Sequence[int]
    after: tuple[int, int, int]
    limit: int
    shut: Sequence[int] = ()


class ScanResult(NamedTuple):
    """The next runs of some lanes, and the position after which there may be more."""

    heads: list[Head]
    end: tuple[int, int, int] | None


class Candidates(NamedTuple):
    """The candidates of claims, as read without locks."""

    views: list[ScanResult]
    newest: int  # lane
    controls: int  # revision
    busy: frozenset[str]  # workers whose one slot is taken
    calls: dict[str, str]  # which call has claimed under a nonce


class ClaimTerms(NamedTuple):
    """The terms of one claim: for whom, under which token and lease, and at most how many runs."""

    token: str
    call: str | None
    worker: str
    slot: int | None
    lease: int
    limit: int


class ClaimStamp(NamedTuple):
    """When runs are claimed, under which revision of the controls, and how long the nonces are kept."""

    mark: str
    controls: int
    now: int
    until: int


class HandedRuns(NamedTuple):
    """Runs that were handed out, and the server's time of the batch, where there is a server."""

    runs: list[Run]
    server: int | None = None


class ClaimRecords(Rows):
    """Handing out runs."""

    async def look(self, scans: Sequence[Scan], singles: Collection[str] = (), nonces: Collection[str] = ()) -> Candidates:
        """The next queued runs of each set of lanes, those of these workers that are busy, and the calls that have used these nonces."""
        heads = [_heads(one) for one in scans]
        statements = [statement for some in heads for statement in some]
        if singles:
            statements.append(Statement("busy", {"names": pack(sorted(singles))}))
        if nonces:
            statements.append(Statement("calls_under", {"names": pack(sorted(nonces))}))
        answers = await self._batch("claim", *statements)
        newest, controls = next(row[:2] for row in answers[0] if row[_LANE] is None)
        calls: dict[str, str] = dict(answers.pop()) if nonces else {}
        busy = frozenset(name for (name,) in answers.pop()) if singles else frozenset[str]()
        remaining = iter(answers)
        views = [_view(one, self._limit, *(next(remaining) for _ in some)) for one, some in zip(scans, heads, strict=True)]
        return Candidates(views, newest or 0, controls, busy, calls)

    async def claim(self, chosen: Sequence[tuple[Sequence[Head], Sequence[ClaimTerms]]], moment: ClaimStamp) -> HandedRuns:
        """Claim the first of these heads that are still queued, for the requests in their order."""
        statements = []
        for heads, grabs in chosen:
            values: dict[str, Value] = {"c": _places(heads), "count": sum(grab.limit for grab in grabs)}
            values |= {"mark": moment.mark, "controls": moment.controls, "now": moment.now}
            if len(grabs) == 1:
                statements.append(Statement("claim", values | _asking(grabs[0])))
            else:
                statements.append(Statement("claim_each", values | {"g": pack(_numbered(grabs))}))
        ids = [head.seq for heads, _ in chosen for head in heads]
        return await self._take(ids, [grab for _, grabs in chosen for grab in grabs], moment, *statements)

    async def claim_within(self, heads: Sequence[Head], sets: Mapping[str, Value], grab: ClaimTerms, moment: ClaimStamp) -> HandedRuns:
        """Claim those of these that still fit, and park those that do not; the sets are those of `limiters.within`."""
        limiters, now = Statement("hold_limiters", {"g": sets["g"], "now": moment.now}), moment.now
        park = [Statement("park", {"p": sets["p"]})] if sets["p"] != "[]" else []
        wake = [Statement("wake_limiters", {"g": sets["later"], "now": now})] if sets["later"] != "[]" else []
        if not heads:
            await self._batch("claim", limiters, *park, *wake)
            return HandedRuns([])
        common: dict[str, Value] = {"n": sets["n"], "token": grab.token, "mark": moment.mark}
        values = common | {"w": sets["w"], "now": now}
        rates = [Statement("add_rates", values)] if sets["w"] != "[]" else []
        chosen = Statement("claim_within", _asking(grab) | values | {"c": _places(heads), "controls": moment.controls})
        ids = [head.seq for head in heads]
        return await self._take(ids, [grab], moment, limiters, chosen, Statement("add_holds", common), *rates, *park, *wake)

    async def _take(self, seqs: Sequence[int], grabs: Sequence[ClaimTerms], moment: ClaimStamp, *statements: Statement) -> HandedRuns:
        ids, calls = pack(seqs), sorted((grab.token, grab.call) for grab in grabs if grab.call is not None)
        remember = [Statement("remember_claims", {"r": pack(calls), "until": moment.until})] if calls else []
        journal = Statement("journal", {"ids": ids, "mark": moment.mark, "move": "claim", "now": moment.now})
        claimed = Statement("claimed", {"ids": ids, "mark": moment.mark})
        rows = (await self._batch("claim", *remember, *statements, journal, claimed))[-1]
        runs, server = split_time(rows, len(USUAL) + 1)
        return HandedRuns(list(map(claimed_of, sorted(runs, key=_IN_ORDER))), server)  # sorted here, because SQLite sorts wide rows slowly

    async def correct(self, runs: Iterable[Run], now: int) -> None:
        """Correct the claim time of these runs to now."""
        rows = pack(sorted((run.seq, run.token) for run in runs))
        await self._batch("correct", Statement("correct_claims", {"r": rows, "now": now}))

    async def calls_under(self, nonces: Collection[str]) -> dict[str, str]:
        """The call that has claimed under each of these nonces, where any has."""
        return dict(await self._read("calls_under", names=pack(sorted(nonces)))) if nonces else {}

    async def busy(self, worker: str) -> bool:
        """Whether the one slot of a worker is taken."""
        return bool(await self._read("busy", names=pack([worker])))

    async def held(self, token: str, worker: str) -> list[Run]:
        return [run_of(row) for row in await self._read("held", token=token, worker=worker)]


def _heads(scan: Scan) -> list[Statement]:
    """The statements that read candidates: of lanes that are open, and of those that are shut."""
    priority_key, position, seq = scan.after
    place: dict[str, Value] = {"priority_key": priority_key, "position": position, "seq": seq}
    statements = [Statement("heads", place | {"lanes": pack(scan.lanes), "each": scan.limit, "count": scan.limit})]
    if scan.shut:
        statements.append(Statement("heads", place | {"lanes": pack(scan.shut), "each": 1, "count": len(scan.shut)}))
    return statements


def _view(scan: Scan, limit: int, rows: Iterable[Row], shut: Iterable[Row] = ()) -> ScanResult:
    """As many of these as fit into one answer: at most `limit` bytes of payload, or a single larger run."""
    candidates = _found(rows)
    heads = list(next(slices(candidates, [head.size for head in candidates], limit)))
    end = heads[-1].place if len(heads) == scan.limit or len(heads) < len(candidates) else None
    others = [head for head in _found(shut) if end is None or head.place < end]
    return ScanResult(sorted(heads + others, key=_PLACE) if others else heads, end)


def _found(rows: Iterable[Row]) -> list[Head]:
    """The candidates in order, without the row that has the newest lane and the controls' revision."""
    return sorted((Head._make(row) for row in rows if row[_LANE] is not None), key=_PLACE)


def _places(heads: Iterable[Head]) -> str:
    return pack([(head.seq, head.lane) for head in heads])


def _asking(grab: ClaimTerms) -> dict[str, Value]:
    token, call, worker, slot, lease, _ = grab
    return {"token": token, "call": call, "worker": worker, "slot": slot, "lease": lease}


def _numbered(grabs: Sequence[ClaimTerms]) -> list[tuple[Value, ...]]:
    """The requests, each with the first and the last of the numbers reserved for it."""
    ends = accumulate(grab.limit for grab in grabs)
    return [(*grab[:-1], end - grab.limit + 1, end) for grab, end in zip(grabs, ends, strict=True)]
