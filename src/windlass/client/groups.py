"""The verbs of groups, through a hub."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Raw

from windlass import payload as json
from windlass import wire
from windlass.client.verbs import Verbs, encoded, place
from windlass.engine import checks
from windlass.errors import BadInput, OutcomeUnknown, WrongState
from windlass.model import Group, GroupStatus, NewGroup, NewRun, Result, Run


class GroupVerbs(Verbs):
    """Groups, and what a run may read of others, as the engine has them."""

    async def create_group(self, new: NewGroup, *, undefined: Literal["refuse", "wait"] = "refuse") -> Group:
        """Store a group with all its runs, or nothing."""
        checks.kind(new, "A group", NewGroup)
        checks.count(new.members, "members of a group", self.limits.create)
        if new.key is not None:
            raise BadInput("A group's key cannot be told to a hub.", hint="Leave it out: each call makes its group once.")
        members = [self._in_group(member.run) | {"name": member.name, "after": member.after} for member in new.members]
        callback = None if new.callback is None else self._in_group(new.callback)
        words = {"kind": new.kind, "on_failure": new.on_failure, "name": new.name, "undefined": undefined}
        return await self._made_group(place("groups"), encoded({"members": members, "callback": callback, **words}))

    def _in_group(self, new: NewRun) -> dict[str, Any]:
        if new.key is not None or new.after:
            raise BadInput("A run of a group has no key, and waits for members of its group only.", hint="Leave key and after out.")
        if new.due_at is not None:
            checks.instant(new.due_at, "due_at")
        return {
            "job": checks.name(new.job, "A job's name"),
            "payload": Raw(json.encode(new.payload, most=self.limits.payload).encode()),
            "options": checks.options(new.options, self.limits),
            "scheduled_for": wire.maybe_told(new.due_at),
            "checked": new.checked,
        }

    async def _made_group(self, path: str, body: bytes | None = None) -> Group:
        headers = {"idempotency-key": self.clock.nonce()}
        return wire.group_of(await self.ask("POST", path, wire.GroupView, body=body, headers=headers, safe=True))

    async def get_group(self, group_id: str) -> Group:
        """The group with this id."""
        return wire.group_of(await self._look(self._group(group_id), wire.GroupView))

    async def groups(self, *, status: GroupStatus | None = None, after: str | None = None, count: int = 100) -> list[Group]:
        """Groups, newest first, all or those of a status, from behind one of them on."""
        checks.integer(count, "count", 1, self.limits.page)
        page = await self._look(place("groups"), wire.GroupPage, status=status, cursor=after, count=count)
        return [wire.group_of(view) for view in page.groups]

    async def members(self, group_id: str, *, after: str | None = None, count: int = 100) -> list[Run]:
        """The runs of a group in the order in which they were given, from behind one of them on."""
        checks.integer(count, "count", 1, self.limits.page)
        page = await self._look(self._group(group_id, "runs"), wire.RunPage, cursor=after, count=count)
        return [wire.run_of(view) for view in page.runs]

    async def results(self, run_id: str, *, after: str | None = None, count: int = 100) -> list[Result]:
        """What became of the runs that a run has waited for, or of the members of the group at whose end it is called."""
        checks.integer(count, "count", 1, self.limits.page)
        page = await self._look(self._of(run_id, "results"), wire.Results, cursor=after, count=count)
        return [wire.result_of(view) for view in page.results]

    async def cancel_group(self, group_id: str, *, reason: str | None = None, by: str | None = None) -> Group:
        """Cancel all members that have not ended. Who does it is known by the token, whatever `by` says."""
        path, body = self._group(group_id, "cancel"), wire.CancelRun(reason)
        try:
            return wire.group_of(await self.ask("POST", path, wire.GroupView, body=body))
        except OutcomeUnknown:
            pass
        try:
            return wire.group_of(await self.ask("POST", path, wire.GroupView, body=body, safe=True))
        except WrongState:
            group = await self.get_group(group_id)
            if group.cancelled:
                return group  # the first ask was heard
            raise

    async def rerun_group(self, group_id: str) -> Group:
        """Make a new group from one that has ended: the same runs with fresh limits, waiting for each other in the same way."""
        return await self._made_group(self._group(group_id, "rerun"))

    def _group(self, group_id: str, *more: str) -> str:
        return place("groups", checks.identifier(group_id, "The group"), *more)
