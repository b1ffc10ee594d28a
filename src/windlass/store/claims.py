"""Rows of a claim: what is seen of the queues before anything is taken, and the taking."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

from windlass.model import Run
from windlass.payload import slices
from windlass.store.base import Row, Statement, Value
from windlass.store.order import WITHIN
from windlass.store.rows import Rows, pack, run_of, split_time

_IN_ORDER = itemgetter(*map(Run.__struct_fields__.index, ("band", "position", "seq")))

BATCHES: Mapping[str, tuple[str, ...]] = {
    "claim": ("remember_claims", "claim", "claim_each", *WITHIN, "journal"),
    "correct": ("correct_claims",),
}

FIRST = (-(2**63), -(2**63), 0)
"""The place before every run of a queue."""


class Head(NamedTuple):
    """A queued run's place, and what decides whether it may pass."""

    seq: int
    band: int
    position: int
    lane: int
    due_at: int
    keys: str | None
    size: int = 0  # of its payload, in bytes

    @property
    def place(self) -> tuple[int, int, int]:
        return self.band, self.position, self.seq


_LANE = Head._fields.index("lane")
_PLACE = itemgetter(*map(Head._fields.index, ("band", "position", "seq")))


class Wanted(NamedTuple):
    """Where to look for queued runs: in these lanes behind a place, so many; and the first of each lane that is shut."""

    lanes: Sequence[int]
    after: tuple[int, int, int]
    most: int
    shut: Sequence[int] = ()


class View(NamedTuple):
    """The next runs of some lanes, and the place behind which there may be more."""

    heads: list[Head]
    end: tuple[int, int, int] | None


class Look(NamedTuple):
    """What claims see before they take anything."""

    views: list[View]
    newest: int  # lane
    controls: int  # revision
    busy: frozenset[str]  # workers whose one slot is taken
    calls: dict[str, str]  # which call has claimed under a nonce


class Grab(NamedTuple):
    """Under what somebody takes up to so many runs."""

    token: str
    call: str | None
    worker: str
    slot: int | None
    lease: int
    most: int


class Moment(NamedTuple):
    """When runs are taken, under which revision of the controls, and how long the nonces are known."""

    mark: str
    controls: int
    now: int
    until: int


class Handed(NamedTuple):
    """Runs that were handed out, and the server's time then, where there is a server."""

    runs: list[Run]
    server: int | None = None


class ClaimRecords(Rows):
    """Handing out runs."""

    async def look(self, wanted: Sequence[Wanted], singles: Collection[str] = (), nonces: Collection[str] = ()) -> Look:
        """The next queued runs of each set of lanes, which of these workers are busy, and what is known of these nonces."""
        heads = [_heads(one) for one in wanted]
        asked = [statement for some in heads for statement in some]
        if singles:
            asked.append(Statement("busy", {"names": pack(sorted(singles))}))
        if nonces:
            asked.append(Statement("calls_under", {"names": pack(sorted(nonces))}))
        answers = await self._batch("claim", *asked)
        newest, controls = next(row[:2] for row in answers[0] if row[_LANE] is None)
        calls: dict[str, str] = dict(answers.pop()) if nonces else {}
        busy = frozenset(name for (name,) in answers.pop()) if singles else frozenset[str]()
        found = iter(answers)
        views = [_view(one, self._most, *(next(found) for _ in some)) for one, some in zip(wanted, heads, strict=True)]
        return Look(views, newest or 0, controls, busy, calls)

    async def claim(self, chosen: Sequence[tuple[Sequence[Head], Sequence[Grab]]], moment: Moment) -> Handed:
        """Take the first of these heads that are still there, for those who want them in the order they are named."""
        statements = []
        for heads, grabs in chosen:
            values: dict[str, Value] = {"c": _places(heads), "count": sum(grab.most for grab in grabs)}
            values |= {"mark": moment.mark, "controls": moment.controls, "now": moment.now}
            if len(grabs) == 1:
                statements.append(Statement("claim", values | _asking(grabs[0])))
            else:
                statements.append(Statement("claim_each", values | {"g": pack(_numbered(grabs))}))
        ids = [head.seq for heads, _ in chosen for head in heads]
        return await self._take(ids, [grab for _, grabs in chosen for grab in grabs], moment, *statements)

    async def claim_within(self, heads: Sequence[Head], sets: Mapping[str, Value], grab: Grab, moment: Moment) -> Handed:
        """Take those of these that still fit, and put aside those that do not; the sets are those of `order.within`."""
        gates, now = Statement("hold_gates", {"g": sets["g"], "now": moment.now}), moment.now
        park = [Statement("park", {"p": sets["p"]})] if sets["p"] != "[]" else []
        wake = [Statement("wake_gates", {"g": sets["later"], "now": now})] if sets["later"] != "[]" else []
        if not heads:
            await self._batch("claim", gates, *park, *wake)
            return Handed([])
        common: dict[str, Value] = {"n": sets["n"], "token": grab.token, "mark": moment.mark}
        timed = common | {"w": sets["w"], "now": now}
        rates = [Statement("add_rates", timed)] if sets["w"] != "[]" else []
        chosen = Statement("claim_within", _asking(grab) | timed | {"c": _places(heads), "controls": moment.controls})
        ids = [head.seq for head in heads]
        return await self._take(ids, [grab], moment, gates, chosen, Statement("add_holds", common), *rates, *park, *wake)

    async def _take(self, seqs: Sequence[int], grabs: Sequence[Grab], moment: Moment, *statements: Statement) -> Handed:
        ids, calls = pack(seqs), sorted((grab.token, grab.call) for grab in grabs if grab.call is not None)
        remember = [Statement("remember_claims", {"r": pack(calls), "until": moment.until})] if calls else []
        journal = Statement("journal", {"ids": ids, "mark": moment.mark, "move": "claim", "now": moment.now})
        claimed = Statement("claimed", {"ids": ids, "mark": moment.mark})
        rows = (await self._batch("claim", *remember, *statements, journal, claimed))[-1]
        runs, server = split_time(rows, len(Run.__struct_fields__))
        return Handed(list(map(run_of, sorted(runs, key=_IN_ORDER))), server)  # sorted here, because SQLite sorts wide rows slowly

    async def correct_claims(self, runs: Iterable[Run], now: int) -> None:
        """These were claimed now, and not when that was written."""
        rows = pack(sorted((run.seq, run.token) for run in runs))
        await self._batch("correct", Statement("correct_claims", {"r": rows, "now": now}))

    async def calls_under(self, nonces: Collection[str]) -> dict[str, str]:
        """Which call has claimed under a nonce, as far as any has."""
        return dict(await self._read("calls_under", names=pack(sorted(nonces)))) if nonces else {}

    async def held(self, token: str, worker: str) -> list[Run]:
        return [run_of(row) for row in await self._read("held", token=token, worker=worker)]


def _heads(wanted: Wanted) -> list[Statement]:
    """The statements that look for runs: in lanes that are open, and in those that are shut."""
    band, position, seq = wanted.after
    place: dict[str, Value] = {"band": band, "position": position, "seq": seq}
    found = [Statement("heads", place | {"lanes": pack(wanted.lanes), "each": wanted.most, "count": wanted.most})]
    if wanted.shut:
        found.append(Statement("heads", place | {"lanes": pack(wanted.shut), "each": 1, "count": len(wanted.shut)}))
    return found


def _view(wanted: Wanted, most: int, rows: Iterable[Row], shut: Iterable[Row] = ()) -> View:
    """As many of these as one answer can bring: so many bytes at most, or one that is larger."""
    found = _found(rows)
    heads = list(next(slices(found, [head.size for head in found], most)))
    end = heads[-1].place if len(heads) == wanted.most or len(heads) < len(found) else None
    others = [head for head in _found(shut) if end is None or head.place < end]
    return View(sorted(heads + others, key=_PLACE) if others else heads, end)


def _found(rows: Iterable[Row]) -> list[Head]:
    """The runs of a look in their order, without the row that tells of all."""
    return sorted((Head._make(row) for row in rows if row[_LANE] is not None), key=_PLACE)


def _places(heads: Iterable[Head]) -> str:
    return pack([(head.seq, head.lane) for head in heads])


def _asking(grab: Grab) -> dict[str, Value]:
    token, call, worker, slot, lease, _ = grab
    return {"token": token, "call": call, "worker": worker, "slot": slot, "lease": lease}


def _numbered(grabs: Sequence[Grab]) -> list[tuple[Value, ...]]:
    """Those who want runs, each with the first and the last number that are its own."""
    ends = accumulate(grab.most for grab in grabs)
    return [(*grab[:-1], end - grab.most + 1, end) for grab, end in zip(grabs, ends, strict=True)]
