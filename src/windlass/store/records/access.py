"""Tokens, and the audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import asdict

from windlass.model import AuditEntry, Scope, Token
from windlass.payload import reader
from windlass.store.base import Row, Statement, Value
from windlass.store.records.batches import Rows
from windlass.store.rows import pack

BATCHES: Mapping[str, tuple[str, ...]] = {
    "create_token": ("add_token", "refuse_token", "add_audit"),
    "rotate_token": ("end_token", "refuse_rotate", "add_token", "refuse_token", "add_audit"),
    "revoke_token": ("revoke_token", "add_audit"),
    "use_token": ("mark_used",),
    "sign_in": ("sign_in", "audit_sign_in"),
    "drop_tokens": ("drop_tokens",),
    "drop_audit": ("drop_audit",),
}

NEWEST = 2**63 - 1
"""Greater than the number of every entry of the audit log."""

_scopes = reader(tuple[Scope, ...])


class AccessRecords(Rows):
    """Tokens, and the audit log."""

    async def add_token(self, token: Token, limit: int) -> None:
        """Store a token; Conflict when there are too many."""
        await self._batch("create_token", *_add(token, limit))

    async def rotate_token(self, old: Token, expires_at: int, new: Token, limit: int) -> None:
        """Store a token in the place of another, which stays valid until then; Conflict when it has ended, or there are too many."""
        ends: dict[str, Value] = {"id": old.id, "expires_at": expires_at}
        end = Statement("end_token", ends | {"now": new.created_at})
        await self._batch("rotate_token", end, Statement("refuse_rotate", ends), *_add(new, limit))

    async def sign_in(self, invitation: str, hash: str, now: int, ttl: int) -> Token | None:
        """Turn an invitation into a session with another hash; None when it is unknown, used or expired."""
        values: dict[str, Value] = {"invitation": invitation, "hash": hash, "now": now, "ttl": ttl, "expires_at": now + ttl}
        hashes: dict[str, Value] = {"hash": hash}
        answers = await self._batch(
            "sign_in", Statement("sign_in", values), Statement("audit_sign_in", hashes), Statement("token_by_hash", hashes)
        )
        return _one(answers[-1])

    async def token(self, id: str) -> Token | None:
        return _one(await self._read("token", id=id))

    async def token_by_hash(self, hash: str) -> Token | None:
        return _one(await self._read("token_by_hash", hash=hash))

    async def tokens_after(self, after: str, count: int) -> list[Token]:
        return [_token(row) for row in await self._read("tokens_after", after=after, count=count)]

    async def any_token(self) -> bool:
        return bool(await self._read("any_token"))

    async def revoke_token(self, id: str, now: int) -> None:
        await self._batch("revoke_token", Statement("revoke_token", {"id": id, "now": now}))

    async def mark_used(self, id: str, at: int) -> None:
        await self._batch("use_token", Statement("mark_used", {"id": id, "at": at}))

    async def drop_tokens(self, before: int, count: int) -> int:
        """Remove tokens that ended before a time; how many."""
        ids = [id for (id,) in await self._read("old_tokens", before=before, count=count)]
        if ids:
            await self._batch("drop_tokens", Statement("drop_tokens", {"ids": pack(ids)}))
        return len(ids)

    async def audit(self, before: int, count: int) -> list[tuple[int, AuditEntry]]:
        """Entries with their numbers, newest first."""
        return [(id, AuditEntry(*entry)) for id, *entry in await self._read("audit_before", before=before, count=count)]

    async def drop_audit(self, before: int, count: int) -> int:
        """Remove audit entries from before a time; how many."""
        ids = [id for (id,) in await self._read("old_audit", before=before, count=count)]
        if ids:
            await self._batch("drop_audit", Statement("drop_audit", {"ids": pack(ids)}))
        return len(ids)


def _add(token: Token, limit: int) -> tuple[Statement, Statement]:
    values = asdict(token) | {"scopes": pack(token.scopes), "now": token.created_at, "limit": limit}
    names = ("id", "name", "hash", "scopes", "worker", "kind", "now", "ttl", "expires_at", "principal", "limit")
    return Statement("add_token", {name: values[name] for name in names}), Statement("refuse_token", {"id": token.id})


def _token(row: Row) -> Token:
    id, name, hash, scopes, *rest = row
    return Token(id, name, hash, _scopes(scopes), *rest)


def _one(rows: Sequence[Row]) -> Token | None:
    return _token(rows[0]) if rows else None
