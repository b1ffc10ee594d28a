"""Making runs: one or many, with keys and predecessors, from a definition that is current when they are stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec

from windlass import payload as json
from windlass.engine import checks
from windlass.engine.core import PATIENCE, Core, Template, merged
from windlass.errors import BadInput, Conflict, DuplicateKey, NotFound, OutcomeUnknown, WrongState
from windlass.machine import ENDED
from windlass.model import Created, Job, Key, NewRun, Options, State, place
from windlass.store.records import Creation, Winner, policy_text

_canonical = msgspec.json.Encoder(order="deterministic").encode
_NOTHING_SAID = Options()


def content_hash(new: NewRun) -> str:
    """Equal for creations that ask for the same."""
    content = _canonical((new.job, new.payload, new.options, new.due_at, new.after, new.after_end))
    return blake2b(content, digest_size=16).hexdigest()


def _laid_over(job: Job, given: Any) -> Any:
    """A payload over the job's template: members one by one for objects, else whole."""
    if given is None:
        return job.payload
    return {**job.payload, **given} if job.payload and isinstance(given, dict) else given


class _Asked(NamedTuple):
    """A creation with the id it will have, if its key is free."""

    id: str
    new: NewRun
    key: tuple[str, str] | None


class Transaction:
    """Creations that are collected, and become real together when the block ends well."""

    def __init__(self) -> None:
        self.news: list[NewRun] = []
        self.created: list[Created] = []  # filled when the block has ended

    def create(self, *news: NewRun) -> None:
        """Add runs; they are checked and stored when the block ends."""
        self.news += news


class Creating(Core):
    """The verbs that make runs."""

    @asynccontextmanager
    async def transaction(self, *, undefined: Literal["refuse", "wait"] = "refuse") -> AsyncIterator[Transaction]:
        """Collect creations and store them in one batch; an error in the block, or in one of them, stores none."""
        collected = Transaction()
        yield collected
        collected.created = await self.create(collected.news, undefined=undefined)

    async def create(self, news: Sequence[NewRun], *, undefined: Literal["refuse", "wait"] = "refuse") -> list[Created]:
        """Store these runs, all or none; the answers are in the same order.

        A run whose key is taken is not made: its answer names the run that holds the key.
        """
        checks.count(news, "runs", self.limits.create)
        checks.choice(undefined, "undefined", ("refuse", "wait"))
        asked = [self._asked(new) for new in news]
        if not asked:
            return []
        for _ in range(PATIENCE):
            made = await self._made(asked, undefined)
            winners = await self._store(made)
            if winners is not None:
                return [self._answer(item, winners) for item in asked]
            await self._refuse_other_content(made)
            self.forget_jobs()
        raise Conflict("The jobs kept changing; nothing was created.", hint="Try again.")

    async def rerun(self, run_id: str) -> Created:
        """Make a new run from an ended one: the same payload and rules, a fresh limit, no key."""
        old = await self.get(run_id)
        if old.state not in ENDED:
            raise WrongState(f"Run {old.id} is {old.state}, so it cannot rerun.", hint="Wait for its end, or cancel it first.")
        now, new_id = self.clock.now(), self.clock.new_id()
        kept = {name: getattr(old, name) for name in ("job", "queue", "lane", "band", "payload", "max_attempts", "max_runtime")}
        row = kept | {"id": new_id, "state": State.QUEUED, "due_at": now, "position": place(now), "policy": policy_text(old.policy)}
        row |= {"retry_of": old.current_attempt, "scope": None, "key": None}
        for _ in range(PATIENCE):
            if await self._store(Creation(now, [row])) is not None:
                return Created(new_id, created=True)
        raise Conflict(f"Run {old.id} could not be rerun.", hint="Try again.")

    async def _store(self, made: Creation) -> dict[tuple[str, str], Winner] | None:
        """Who holds the keys now that the runs are stored; None when they are not.

        Their ids are fixed, so where there is a doubt the store can be asked.
        """
        try:
            return await self.records.create(made, self.clock.nonce())
        except (OutcomeUnknown, Conflict):
            stored = await self.records.seqs([row["id"] for row in made.rows])
        if not stored:
            return None
        ours = {(row["scope"], row["key"]): Winner(row["id"], None) for row in made.rows if row["id"] in stored}
        return await self.records.winners(made.keys, made.now) | ours

    def _asked(self, new: NewRun) -> _Asked:
        checks.name(new.job, "A job's name")
        json.encode(new.payload, most=self.limits.payload)
        if new.options is not _NOTHING_SAID and new.options != _NOTHING_SAID:
            checks.options(new.options, self.limits)
        checks.count(new.after, "predecessors", self.limits.predecessors)
        checks.choice(new.after_end, "after_end", ("success", "any"))
        if new.retry_of is not None:
            checks.identifier(new.retry_of, "retry_of")
        if new.due_at is not None:
            checks.instant(new.due_at, "due_at")
        key = checks.key(new.key, self.limits) if new.key is not None else None
        return _Asked(self.clock.new_id(), new, (key.scope, key.name) if key else None)

    async def _made(self, asked: Sequence[_Asked], undefined: Literal["refuse", "wait"]) -> Creation:
        """Everything one batch needs, worked out from what this process knows now."""
        firsts: dict[tuple[str, str], _Asked] = {}
        for item in asked:
            if item.key and _other_content(firsts.setdefault(item.key, item), item):
                raise BadInput(f"The key {item.key[1]!r} is used twice in one call, with different content.", hint="Give each its own key.")
        now = self.clock.now()
        predecessors = await self._predecessors([item.new for item in asked])
        jobs = await self.definitions((item.new.job for item in asked), undefined)
        templates = [self._template(item.new, *jobs[item.new.job]) for item in asked]
        texts = [json.dump(_laid_over(jobs[item.new.job][0], item.new.payload), most=self.limits.payload) for item in asked]
        lanes = [(template.queue, item.new.job, template.requires) for item, template in zip(asked, templates, strict=True)]
        await self.ensure_lanes(set(lanes))
        kept = [(index, item) for index, item in enumerate(asked) if item.key is None or firsts[item.key] is item]
        compared = {item.key for item in asked if item.new.key and item.new.key.on_duplicate == "compare"}
        definitions = sorted({(item.new.job, jobs[item.new.job][0].rev) for item in asked})
        return Creation(
            now=now,
            rows=[self._row(item, templates[index], lanes[index], texts[index], now, index) for index, item in kept],
            keys=[
                _key_row(item, item.new.key, item.key in compared, now)
                for _, item in sorted(kept, key=lambda pair: pair[1].key or ())
                if item.new.key
            ],
            definitions=[{"name": name, "rev": rev} for name, rev in definitions],
            waits=[
                {"id": item.id, "predecessor": predecessors[before], "rule": item.new.after_end}
                for _, item in kept
                for before in sorted(set(item.new.after))
            ],
        )

    def _template(self, new: NewRun, job: Job, template: Template) -> Template:
        return template if new.options == _NOTHING_SAID else Template.of(merged(job.options, new.options))

    def _row(self, item: _Asked, template: Template, lane: tuple[str, str, str], text: str, now: int, index: int) -> dict[str, Any]:
        new, due_at = item.new, item.new.due_at if item.new.due_at is not None else now
        ready = State.SCHEDULED if due_at > now else State.QUEUED
        scope, key = item.key or (None, None)
        return {
            "id": item.id,
            "state": State.WAITING if new.after else ready,
            "job": new.job,
            "queue": template.queue,
            "lane": self.lanes.ids[lane],
            "band": template.band,
            "position": place(max(now, due_at), index),
            "payload": text,
            "due_at": due_at,
            "max_attempts": template.max_attempts,
            "max_runtime": template.max_runtime,
            "policy": template.policy,
            "retry_of": new.retry_of,
            "scope": scope,
            "key": key,
        }

    async def _predecessors(self, news: Sequence[NewRun]) -> dict[str, int]:
        wanted = {before for new in news for before in new.after}
        for before in wanted:
            checks.identifier(before, "The predecessor")
        found = await self.records.seqs(sorted(wanted))
        for before in sorted(wanted - found.keys()):
            raise NotFound(
                f"There is no run {before} to wait for.", hint="Create the predecessor first, and wait for the id in its answer."
            )
        return found

    def _answer(self, item: _Asked, winners: Mapping[tuple[str, str], Winner]) -> Created:
        winner = winners[item.key] if item.key else None
        if winner is None or winner.run == item.id:
            return Created(item.id, created=True)
        return Created(winner.run, created=False, pruned=not winner.kept)

    async def _refuse_other_content(self, made: Creation) -> None:
        """Say so if the batch was refused because a key is held by a run with other content."""
        winners = await self.records.winners(made.keys, made.now)
        for row in made.keys:
            winner = winners.get((row["scope"], row["key"]))
            if row["compare"] and winner is not None and winner.held and winner.run != row["run"] and winner.hash != row["hash"]:
                raise DuplicateKey(
                    f"The key {row['key']!r} is held by run {winner.run}, which was asked for with other content.",
                    hint="Use a new key for a new request; repeat the first request exactly to get its run.",
                )


def _other_content(first: _Asked, again: _Asked) -> bool:
    compare = again.new.key is not None and again.new.key.on_duplicate == "compare"
    return compare and first is not again and content_hash(first.new) != content_hash(again.new)


def _key_row(item: _Asked, key: Key, compare: bool, now: int) -> dict[str, Any]:
    return {
        "scope": key.scope,
        "key": key.name,
        "run": item.id,
        "hash": content_hash(item.new),
        "unfinished": int(key.lasts == "unfinished"),
        "until": now + key.period if key.period is not None else None,
        "compare": int(compare),
    }
