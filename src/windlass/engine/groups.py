"""Groups: runs that start and finish together by rule."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from windlass import payload as json
from windlass.engine import checks
from windlass.engine.creations import Creations, again
from windlass.engine.ground import PATIENCE, Ground, Part
from windlass.engine.payloads import Payloads
from windlass.engine.runs import Runs
from windlass.errors import BadInput, Conflict, NotFound, OutcomeUnknown, WrongState, in_doubt
from windlass.machine import MOVES, Cancel, step
from windlass.model import Group, GroupKind, GroupStatus, Key, Member, NewGroup, NewRun, OnFailure, Result, Run
from windlass.store.creation import Creation, KeyRow, Kind, NewRow
from windlass.store.records import Change, Winner
from windlass.store.records.groups import NEWEST, GroupRow
from windlass.store.rows import pack

SLICE = 500
"""Members that are cancelled in one batch."""

_canonical = msgspec.json.Encoder(order="deterministic").encode


class Groups(Part):
    """The verbs of groups, and of the results that one run may read of others."""

    def __init__(self, ground: Ground, runs: Runs, creations: Creations, payloads: Payloads) -> None:
        super().__init__(ground)
        self._runs, self._creations, self._payloads = runs, creations, payloads

    async def create(self, new: NewGroup, *, undefined: Literal["refuse", "wait"] = "refuse") -> Group:
        """Store a group with all its runs, or nothing. With a key, the same request again returns the same group."""
        checks.choice(undefined, "undefined", ("refuse", "wait"))
        self._check(new)
        before = self._predecessors_by_place(new)
        news = [member.run for member in new.members] + ([] if new.callback is None else [new.callback])
        texts = [json.encode(one.payload, limit=self.limits.payload) for one in news]
        ids = sorted(self.clock.new_ids(len(news)))  # so that the members can be read in the order of this call
        requests = list(zip(ids, news, [None] * len(news), texts, strict=True))
        waits = [(ids[place], ids[other]) for place, others in enumerate(before) for other in others]
        callback = None if new.callback is None else ids[-1]
        group = GroupRow(self.clock.new_id(), new.name, new.kind, new.on_failure, len(new.members), waits, callback)
        for _ in range(PATIENCE):
            creation = _in_group(await self._creations.planned(requests, undefined, group.waiting), group)
            if new.key is not None:
                earliest, latest = await self.ground.bounds()
                creation = creation._replace(keys=[_key_row(replace(new, key=None), new.key, group.id, latest)], keys_at=earliest)
            if (unfit := await self._payloads.unfit(news)) and not await self._winners(creation):
                raise unfit[min(unfit)].error(_whose(new, min(unfit)))
            if (stored := await self._store(group, creation)) is not None:
                return stored
            self.ground.memory.forget_jobs()
            await self.ground.refresh_controls()
        raise Conflict("The jobs kept changing; nothing was created.", hint="Try again.")

    async def _store(self, group: GroupRow, creation: Creation) -> Group | None:
        """The group once it is stored, or the one that the same request has created before; None when neither exists."""
        try:
            return await self._stored(group, creation)
        except OutcomeUnknown as unknown:
            with in_doubt(unknown):
                stored = await self._find(group, creation)
                return stored if stored is not None or unknown.settled else await self._stored(group, creation)

    async def _stored(self, group: GroupRow, creation: Creation) -> Group | None:
        try:
            await self.records.creations.create_group(group, creation, self.clock.nonce())
        except Conflict:
            return await self._find(group, creation)
        return await self._wake_and_get(group, creation)

    async def _find(self, group: GroupRow, creation: Creation) -> Group | None:
        if await self.records.groups.find(group.id) is None:
            await self._creations.refuse_other_content(creation)
            winners = await self._winners(creation)
            return await self.get(next(iter(winners.values())).run) if winners else None
        return await self._wake_and_get(group, creation)

    async def _winners(self, creation: Creation) -> dict[tuple[str, str], Winner]:
        """The holder of a group's key: the same request again returns the same group."""
        return await self.records.creations.winners(creation.keys, creation.judged_at)

    async def _wake_and_get(self, group: GroupRow, creation: Creation) -> Group:
        await self.ground.wake_queues(self._creations.ready(creation, {}), creation.now)
        return await self.get(group.id)

    async def get(self, group_id: str) -> Group:
        """The group with this id."""
        group = await self.records.groups.find(checks.identifier(group_id, "The group"))
        if group is None:
            raise NotFound(f"There is no group {group_id}.", hint="Check the id; a group is removed together with the last of its runs.")
        return group

    async def page(self, *, status: GroupStatus | None = None, after: str | None = None, count: int = 100) -> list[Group]:
        """Groups, newest first, all or those of a status, after the given one."""
        checks.integer(count, "count", 1, self.limits.page)
        checks.choice(status, "status", get_args(GroupStatus))
        before = NEWEST if after is None else (await self.get(after)).seq
        return await self.records.groups.page(status, before, count)

    async def members(self, group_id: str, *, after: str | None = None, count: int = 100) -> list[Run]:
        """The runs of a group in the order in which they were given, after the given one; without large fields, as in a list."""
        checks.integer(count, "count", 1, self.limits.page)
        behind = "" if after is None else checks.identifier(after, "The run")
        return await self.records.runs.page("list_members", seq=(await self.get(group_id)).seq, after=behind, count=count)

    async def results(self, run_id: str, *, after: str | None = None, count: int = 100) -> list[Result]:
        """The outcomes of the runs that a run has waited for, or of the members of the group whose callback it is.

        A page may have fewer than `count`, where their outputs are large; after the last one the page is empty.
        """
        checks.integer(count, "count", 1, self.limits.page)
        behind = "" if after is None else checks.identifier(after, "The run")
        return await self.records.groups.results(await self._runs.get(run_id), behind, count)

    async def cancel(self, group_id: str, *, reason: str | None = None, by: str | None = None) -> Group:
        """Cancel all members that have not ended, in slices: waiting ones at once; running ones are asked to stop."""
        group = await self.get(group_id)
        if group.finished_at is not None:
            raise WrongState(f"Group {group.id} has ended: {group.status}.", hint="It can be rerun as a new group.")
        cmd = Cancel(reason=None if reason is None else checks.reason(reason))
        facts = {"reason": cmd.reason, "group": group.id, "by": None if by is None else checks.name(by, "The actor's name")}
        detail = pack({name: value for name, value in facts.items() if value is not None})
        await self.records.groups.note(group.seq, cmd.reason)
        for _ in range(PATIENCE):
            if not (members := await self.records.groups.to_cancel(group.seq)):
                return await self.get(group_id)
            for begin in range(0, len(members), SLICE):
                await self._cancel_members(members[begin : begin + SLICE], cmd, detail)
        raise Conflict(f"The runs of group {group_id} kept changing; not all were cancelled.", hint="Try again.")

    async def _cancel_members(self, seqs: Sequence[int], cmd: Cancel, detail: str) -> None:
        """Cancel those of these runs that are still as they were read; the caller reads again for the others."""
        runs, now = await self.records.runs.find_seqs(sorted(seqs)), self.clock.now()
        changes = [Change(run, step(run, cmd, now), cmd.name, detail) for run in runs if Cancel in MOVES[run.state]]
        with suppress(OutcomeUnknown):
            await self.ground.write_back("cancel", changes, now)

    async def rerun(self, group_id: str, *, key: Key | None = None) -> Group:
        """Create a new group from one that has ended: the same runs with fresh limits, waiting for each other in the same way."""
        old = await self.get(group_id)
        if old.finished_at is None:
            raise WrongState(f"Group {old.id} is running; it cannot be rerun before its end.", hint="Wait for its end, or cancel it first.")
        runs = await self._all_members(old)
        callbacks = [] if old.callback is None else [await self._runs.get(old.callback)]
        ids = sorted(self.clock.new_ids(len(runs) + len(callbacks)))
        new_ids = {run.id: new_id for run, new_id in zip([*runs, *callbacks], ids, strict=True)}
        waits = [(new_ids[run], new_ids[other]) for run, other in await self.records.groups.waits(old.seq)]
        retries = [(new_ids[run.id], run.current_attempt) for run in (*runs, *callbacks)]
        callback = new_ids[old.callback] if old.callback is not None else None
        identity = self.clock.new_id()
        group = GroupRow(identity, old.name, old.kind, old.on_failure, old.total, waits, callback, retry_of=old.id, retries=retries)
        now = self.clock.now()
        asked = Creation(now, ids, {}, notices=await self._creations.notices_again(new_ids))
        if key is not None:
            earliest, latest = await self.ground.bounds()
            asked = asked._replace(keys=[_key_row(("rerun", old.id), self._checked_key(key), identity, latest)], keys_at=earliest)
        for _ in range(PATIENCE):
            rev, places = await self._creations.lanes_again([*runs, *callbacks])
            rows = _again([*runs, *callbacks], new_ids, places, group.waiting, now)
            creation = _in_group(asked._replace(rows=rows, controls=rev), group)
            if (stored := await self._store(group, creation)) is not None:
                return stored
            await self.ground.refresh_controls()
        raise Conflict(f"Group {old.id} could not be rerun.", hint="Try again.")

    async def _all_members(self, group: Group) -> list[Run]:
        runs: list[Run] = []
        while len(runs) < group.total:
            more = await self.records.groups.members(group.seq, runs[-1].id if runs else "", self.limits.page)
            if not more:
                raise BadInput(
                    f"Group {group.id} has lost {group.total - len(runs):,} of its {group.total:,} runs to retention.",
                    hint="Rerun those that are left one by one, or create the group anew.",
                )
            runs += more
        return runs

    # Validation

    def _check(self, new: NewGroup) -> None:
        checks.kind(new, "A group", NewGroup)
        checks.choice(new.kind, "kind", get_args(GroupKind))
        checks.choice(new.on_failure, "on_failure", get_args(OnFailure))
        if new.name is not None:
            checks.name(new.name, "A group's name")
        checks.kind(new.members, "members", tuple)
        checks.count(new.members, "members of a group", self.limits.create)
        if not new.members:
            raise BadInput("A group needs at least one member.", hint="Add runs to it before it is stored.")
        for member in new.members:
            checks.kind(member, "A member", Member)
            self._check_in_group(member.run, "A member")
            if member.name is not None:
                checks.name(member.name, "A member's name")
        if new.callback is not None:
            self._check_in_group(new.callback, "A callback")
        if new.key is not None:
            self._checked_key(new.key)

    def _checked_key(self, key: Key) -> Key:
        if checks.key(key, self.limits).ttl == "unfinished":
            raise BadInput("A group's key needs a time to live.", hint="Give ttl as milliseconds, or ttl='forever'.")
        return key

    def _check_in_group(self, run: NewRun, what: str) -> None:
        checks.kind(run, what, NewRun)
        if run.key is not None:
            raise BadInput(f"{what} of a group cannot have a key.", hint="A group is stored whole or not at all: give the group a key.")
        if run.id is not None:
            raise BadInput(f"{what} of a group cannot have an id of the caller's.", hint="Leave it out; the answer has the ids.")
        if run.after:
            raise BadInput(
                f"{what} of a group cannot wait for runs outside of it.",
                hint="Create the group when they have ended, or make them members.",
            )
        self._creations.checked(run)

    def _predecessors_by_place(self, new: NewGroup) -> list[Sequence[int]]:
        """For each member, by its index in the call, the indexes of its predecessors."""
        members = new.members
        if new.kind != "graph" and any(member.after for member in members):
            raise BadInput(f"The members of a {new.kind} group name no predecessors.", hint="Say kind='graph', or leave `after` out.")
        if new.kind == "sequential":
            return [(), *((place,) for place in range(len(members) - 1))]
        if new.kind == "parallel":
            return [()] * len(members)
        places = _places(members)
        before = [self._named(member, places) for member in members]
        checks.count([other for others in before for other in others], "waits between the members of a group", self.limits.waits)
        _refuse_cycles(members, before)
        return before

    def _named(self, member: Member, places: Mapping[str, int]) -> Sequence[int]:
        label = f"The member {member.name!r}" if member.name is not None else "A member without a name"
        checks.names(member.after, "A predecessor's name")
        if len(member.after) > self.limits.predecessors:
            raise BadInput(
                f"{label} waits for {len(member.after):,} others; the limit is {self.limits.predecessors:,}.",
                hint="For a run that starts when all have ended, use the group's callback.",
            )
        for name, times in Counter(member.after).items():
            if name == member.name:
                raise BadInput(f"{label} waits for itself.", hint="Name those that must end before it begins.")
            if name not in places:
                raise BadInput(f"{label} waits for {name!r}, which is not in the group.", hint="Name members of the same group.")
            if times > 1:
                raise BadInput(f"{label} names {name!r} more than once.", hint="Name each predecessor once.")
        return [places[name] for name in member.after]


def _whose(new: NewGroup, index: int) -> str:
    return f"The payload of members[{index}]" if index < len(new.members) else "The payload of the callback"


def _places(members: Sequence[Member]) -> dict[str, int]:
    places: dict[str, int] = {}
    for index, member in enumerate(members):
        if member.name is not None and places.setdefault(member.name, index) != index:
            raise BadInput(f"Two members are called {member.name!r}.", hint="Give each a name of its own, or none.")
    return places


def _refuse_cycles(members: Sequence[Member], before: Sequence[Sequence[int]]) -> None:
    """Remove members without predecessors until none is left; members that remain form a cycle."""
    dependents: dict[int, list[int]] = defaultdict(list)
    for index, others in enumerate(before):
        for other in others:
            dependents[other].append(index)
    remaining = {index: len(others) for index, others in enumerate(before)}
    free = [index for index, number in remaining.items() if number == 0]
    while free:
        index = free.pop()
        del remaining[index]
        for dependent in dependents[index]:
            remaining[dependent] -= 1
            if remaining[dependent] == 0:
                free.append(dependent)
    if remaining:
        names = " -> ".join(members[index].name or "?" for index in _cycle(remaining, before))
        raise BadInput(f"The members wait for each other in a circle: {names}.", hint="Leave out one of these predecessors.")


def _cycle(remaining: Mapping[int, int], before: Sequence[Sequence[int]]) -> list[int]:
    """A path from a member through its predecessors back to itself."""
    way: list[int] = []
    index = next(iter(remaining))
    while index not in way:
        way.append(index)
        index = next(other for other in before[index] if other in remaining)
    return [*way[way.index(index) :], index]


def _in_group(creation: Creation, group: GroupRow) -> Creation:
    """The same runs, in a group; its callback is no member."""
    rows: dict[Kind, list[NewRow]] = defaultdict(list)
    for kind, some in creation.rows.items():
        for row in some:
            rows[kind if row.id == group.callback else kind._replace(group=group.id)].append(row)
    return creation._replace(rows=rows)


def _again(
    runs: Sequence[Run], new_ids: Mapping[str, str], places: Sequence[tuple[int, str | None]], waiting: Collection[str | None], now: int
) -> dict[Kind, list[NewRow]]:
    """The rows of new runs with the payloads and rules of old ones, in these lanes and under these keys."""
    rows: dict[Kind, list[NewRow]] = defaultdict(list)
    for index, (run, (lane, keys)) in enumerate(zip(runs, places, strict=True)):
        new_id = new_ids[run.id]
        kind, row = again(run, new_id, lane, keys, now, waits=new_id in waiting, index=index)
        rows[kind].append(row)
    return rows


def _key_row(request: Any, key: Key, group: str, now: int) -> KeyRow:
    content = key.content or blake2b(_canonical(request), digest_size=16).hexdigest()
    return KeyRow(key.scope, key.name, group, content, 0, key.until(now), int(key.on_duplicate == "compare"))
