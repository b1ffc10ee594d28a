"""Tokens, sessions, tickets and the audit, on every store."""

from __future__ import annotations

import asyncio
import hmac
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from msgspec.structs import replace

from tests.grounds import set_ground
from tests.harness import Harness, open_store
from windlass.clock import ManualClock, SystemClock
from windlass.engine import Engine
from windlass.engine.access import HOUR, INVITATION, MINUTE, SESSION, TICKET, hash_of
from windlass.errors import BadInput, LimitReached, NotFound, OutcomeUnknown, StoreBusy, Unauthorized, WrongState
from windlass.faults import FAULTS
from windlass.model import SCOPES, Limits, NewRun, Options, Token, Use
from windlass.store.base import run_sync
from windlass.store.postgres import AsyncPostgres, BlockingPostgres
from windlass.store.sqlite import AsyncSqlite, BlockingSqlite

DAY = 24 * HOUR


@pytest.fixture(autouse=True)
def no_faults() -> None:
    FAULTS.arm("")


def made(h: Harness, *scopes: str, **how: Any) -> tuple[Token, str]:
    return h(h.engine.create_token("ann", scopes or ("read",), **how))


def found(h: Harness, secret: str) -> Token | None:
    return h(h.engine.find_token(secret))


# Tokens


def test_a_secret_finds_its_token(h: Harness) -> None:
    token, secret = made(h, "submit", "read", "read", worker="w1", expires_in=1_000)
    assert secret.startswith("wl_")
    assert len(secret) == 3 + 2 * 22  # 256 bits
    assert (token.name, token.scopes, token.worker, token.kind) == ("ann", ("read", "submit"), "w1", "token")
    assert found(h, secret) == token
    assert h(h.engine.tokens()) == [replace(token, used_at=h.clock.now())]


def test_another_secret_finds_nothing(h: Harness) -> None:
    _, secret = made(h)
    for other in (secret[:-1], secret + "A", secret.swapcase(), secret[3:], f" {secret}", "", "wl_", "wl_" + 44 * "A", "wl_" + 44 * "ä"):
        assert found(h, other) is None


def test_two_tokens_never_share_a_secret(h: Harness) -> None:
    secrets = {made(h)[1] for _ in range(100)}
    assert len(secrets) == 100


def test_secrets_come_from_the_system_in_a_real_process() -> None:
    clocks = [SystemClock(), SystemClock()]
    stores = [BlockingSqlite(":memory:", clock) for clock in clocks]
    secrets = [run_sync(Engine(store, clock).create_token("a", ["read"]))[1] for store, clock in zip(stores, clocks, strict=True)]
    assert secrets[0] != secrets[1]
    for store in stores:
        run_sync(store.close())


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_I11_a_store_holds_no_secret(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    clock = ManualClock()
    store = open_store(kind, tmp_path, request, clock)
    h = Harness(store, clock)
    token, secret = h(h.engine.by("root", "create", "token ann").create_token("ann", ["admin"]))
    _, rotated = h(h.engine.by("root", "rotate", f"token {token.id}").rotate_token(token.id))
    invitation = h(h.engine.invite("eve", ["admin"]))
    used = h(h.engine.invite("bob", ["admin"]))
    _, session = h(h.engine.sign_in(used))
    assert all(found(h, one) for one in (secret, rotated, session))
    ticket, _ = h.engine.ticket(token)
    run_sync(store.close())
    dump = _dump_postgres(request) if kind == "postgres" else _dump_sqlite(tmp_path / "windlass.db")
    assert hash_of(secret) in dump  # the dump does hold the tokens
    for shown in (secret, rotated, invitation, used, session):
        half = shown.partition("_")[2][:22]
        assert len(half) == 22
        assert half not in dump
    assert ticket not in dump


def _dump_sqlite(path: Path) -> str:
    db = apsw.Connection(str(path))
    tables = [name for (name,) in db.execute("select name from sqlite_schema where type = 'table' and name not like 'sqlite_%'")]
    text = "\n".join(repr(row) for table in tables for row in db.execute(f"select * from {table}"))
    db.close()
    files = b"".join(file.read_bytes() for file in path.parent.iterdir() if file.is_file())
    return text + files.decode("latin-1")


def _dump_postgres(request: pytest.FixtureRequest) -> str:
    with psycopg.connect(request.getfixturevalue("emptied_postgres_url")) as db:
        tables = [name for (name,) in db.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()]
        return "\n".join(repr(row) for table in tables for row in db.execute(f"select * from {table}".encode()).fetchall())


@pytest.fixture
def emptied_postgres_url(postgres_server: Any) -> str:
    """The database that a store was just opened on, as it is now."""
    url: str = postgres_server.url("home")
    return url


def test_I10_hashes_are_compared_in_constant_time_as_bytes(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    token, secret = made(h)
    seen: list[tuple[Any, Any]] = []
    really = hmac.compare_digest

    def compare(one: Any, other: Any) -> bool:
        seen.append((one, other))
        return really(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert found(h, secret)
    ticket, _ = h.engine.ticket(token)
    assert h(h.engine.find_ticket(ticket))
    assert seen[0] == (token.hash.encode(), hash_of(secret).encode())
    assert [type(one) for pair in seen for one in pair] == [bytes] * 4


def test_an_expired_token_finds_nothing(h: Harness) -> None:
    _, secret = made(h, expires_in=DAY)
    h.clock.advance(DAY - 1)
    assert found(h, secret)
    h.clock.advance(1)
    assert found(h, secret) is None


def test_a_revoked_token_finds_nothing_at_once(h: Harness) -> None:
    token, secret = made(h)
    other, kept = made(h)
    h.clock.advance(5)
    revoked = h(h.engine.revoke_token(token.id))
    assert revoked.revoked_at == h.clock.now()
    assert found(h, secret) is None
    assert found(h, kept) == other
    h.clock.advance(5)
    assert h(h.engine.revoke_token(token.id)) == revoked  # the first time stays
    h(h.engine.records.access.revoke_token(token.id, h.clock.now()))  # also when both found it good
    assert h(h.engine.get_token(token.id)).revoked_at == revoked.revoked_at


def test_a_rotated_token_stays_good_until_the_overlap_is_over(h: Harness) -> None:
    token, old = made(h, "submit", "work", worker="w1", expires_in=30 * DAY)
    h.clock.advance(DAY)
    successor, new = h(h.engine.rotate_token(token.id, overlap=HOUR))
    assert (successor.name, successor.scopes, successor.worker) == (token.name, token.scopes, token.worker)
    assert successor.expires_at == h.clock.now() + 30 * DAY  # as long as the first one
    h.clock.advance(HOUR - 1)
    assert (found(h, old) or token).id == token.id
    assert (found(h, new) or token).id == successor.id
    h.clock.advance(1)
    assert found(h, old) is None
    assert found(h, new)


def test_rotation_never_makes_a_token_last_longer(h: Harness) -> None:
    token, old = made(h, expires_in=HOUR)
    h(h.engine.rotate_token(token.id, overlap=DAY))
    h.clock.advance(HOUR)
    assert found(h, old) is None


def test_a_token_that_is_rotated_twice_lasts_as_long_as_the_first(h: Harness) -> None:
    token, _ = made(h)
    h(h.engine.rotate_token(token.id, overlap=HOUR))
    again, _ = h(h.engine.rotate_token(token.id))
    assert again.expires_at is None
    assert h(h.engine.get_token(token.id)).expires_at == h.clock.now() + HOUR


def test_without_overlap_a_rotated_token_ends_at_once(h: Harness) -> None:
    token, old = made(h)
    h(h.engine.rotate_token(token.id, overlap=0))
    assert found(h, old) is None


def test_what_has_ended_is_not_rotated(h: Harness) -> None:
    revoked, expired = made(h)[0], made(h, expires_in=1)[0]
    h(h.engine.revoke_token(revoked.id))
    h.clock.advance(1)
    session, _ = h(h.engine.sign_in(h(h.engine.invite("bob", ["read"]))))
    before = h(h.engine.tokens())
    for token in (revoked, expired, session):
        with pytest.raises(WrongState):
            h(h.engine.rotate_token(token.id))
    assert h(h.engine.tokens()) == before


def test_a_token_revoked_while_it_is_rotated_has_no_successor(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    token, _ = made(h)
    rotate = h.engine.records.access.rotate_token

    async def late(*arguments: Any) -> None:
        await h.another().engine.revoke_token(token.id)
        await rotate(*arguments)

    monkeypatch.setattr(h.engine.records.access, "rotate_token", late)
    with pytest.raises(WrongState):
        h(h.engine.rotate_token(token.id))
    assert [token.id for token in h(h.engine.tokens())] == [token.id]


def test_there_is_a_limit_to_tokens_and_reaching_it_changes_nothing(h: Harness) -> None:
    set_ground(h.engine, limits=Limits(tokens=2))
    token, secret = made(h)
    made(h)
    with pytest.raises(LimitReached, match="2 tokens"):
        h(h.engine.by("root", "create", "token c").create_token("c", ["read"]))
    with pytest.raises(LimitReached):
        h(h.engine.by("root", "rotate", "token").rotate_token(token.id, overlap=0))
    assert found(h, secret)  # the rotation that failed has not ended it
    assert len(h(h.engine.tokens())) == 2
    assert h(h.engine.audit()).entries == []


def test_use_is_noted_once_a_minute_in_whole_minutes(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    token, secret = made(h)
    verbs: list[str] = []
    batch = h.store.batch

    async def counted(verb: str, statements: Any) -> Any:
        verbs.append(verb)
        return await batch(verb, statements)

    monkeypatch.setattr(h.store, "batch", counted)
    h.clock.advance(70_123)
    start = h.clock.now() - h.clock.now() % MINUTE
    for _ in range(3):
        found(h, secret)
    h.clock.advance(start + MINUTE - 1 - h.clock.now())
    found(h, secret)
    assert h(h.engine.get_token(token.id)).used_at == start
    assert verbs.count("use_token") == 1
    h.clock.advance(1)
    found(h, secret)
    assert h(h.engine.get_token(token.id)).used_at == start + MINUTE
    assert verbs.count("use_token") == 2


@pytest.mark.parametrize("fault", ["busy", "full", "unknown"])
def test_a_store_that_cannot_be_written_locks_nobody_out(h: Harness, fault: str) -> None:
    token, secret = made(h)
    FAULTS.arm(f"use_token.before_begin=raise:{fault}")
    assert found(h, secret) == token


@pytest.mark.parametrize("place", ["before_begin", "after_commit"])
def test_a_token_whose_commit_is_unknown_is_there_or_refused(h: Harness, place: str) -> None:
    FAULTS.arm(f"create_token.{place}=raise:unknown@1")
    if place == "after_commit":
        assert found(h, made(h)[1])
        return
    with pytest.raises(OutcomeUnknown):
        made(h)
    assert h(h.engine.tokens()) == []


@pytest.mark.parametrize("place", ["before_begin", "after_commit"])
def test_a_rotation_whose_commit_is_unknown_is_done_or_refused(h: Harness, place: str) -> None:
    token, old = made(h)
    FAULTS.arm(f"rotate_token.{place}=raise:unknown@1")
    if place == "after_commit":
        assert found(h, h(h.engine.rotate_token(token.id, overlap=0))[1])
        assert found(h, old) is None
        return
    with pytest.raises(OutcomeUnknown):
        h(h.engine.rotate_token(token.id, overlap=0))
    assert found(h, old)


@pytest.mark.parametrize(
    ("name", "scopes", "how"),
    [
        ("", ["read"], {}),
        ("a\n", ["read"], {}),
        ("x" * 129, ["read"], {}),
        ("a", [], {}),
        ("a", ["root"], {}),
        ("a", ["read", "root"], {}),
        ("a", ["read"], {"worker": ""}),
        ("a", ["read"], {"worker": "a\0"}),
        ("a", ["read"], {"expires_in": 0}),
        ("a", ["read"], {"expires_in": -1}),
        ("a", ["read"], {"expires_in": 2**60}),
        ("a", ["read"], {"expires_in": True}),
    ],
)
def test_bad_tokens_are_refused(h: Harness, name: str, scopes: list[str], how: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        h(h.engine.create_token(name, scopes, **how))
    assert h(h.engine.tokens()) == []


def test_one_scope_may_be_said_as_a_text(h: Harness) -> None:
    assert h(h.engine.create_token("a", "admin"))[0].scopes == ("admin",)
    assert set(SCOPES) == {"read", "submit", "work", "admin"}


@pytest.mark.parametrize("id", ["", "a b", "x" * 65, "é"])
def test_what_is_no_id_is_refused(h: Harness, id: str) -> None:
    for verb in (h.engine.get_token, h.engine.revoke_token, h.engine.rotate_token):
        with pytest.raises(BadInput):
            h(verb(id))


def test_a_token_that_is_not_there_is_not_found_and_leaves_no_entry(h: Harness) -> None:
    engine = h.engine.by("root", "revoke", "token")
    for verb in (engine.get_token, engine.revoke_token, engine.rotate_token):
        with pytest.raises(NotFound):
            h(verb("nobody"))
    assert h(h.engine.audit()).entries == []


def test_tokens_are_listed_in_pages(h: Harness) -> None:
    made_ids = []
    for _ in range(5):
        made_ids.append(made(h)[0].id)
        h.clock.advance(1)
    first = h(h.engine.tokens(count=3))
    rest = h(h.engine.tokens(after=first[-1].id, count=3))
    assert [token.id for token in (*first, *rest)] == made_ids
    with pytest.raises(BadInput):
        h(h.engine.tokens(count=0))
    with pytest.raises(BadInput):
        h(h.engine.tokens(after="a b"))


# Retention


def test_what_ended_long_ago_is_forgotten_but_never_the_newest_token(h: Harness) -> None:
    old, lasting = made(h)[0], made(h, "admin")[0]
    h.clock.advance(1)
    newest = made(h)[0]
    h(h.engine.sign_in(h(h.engine.invite("bob", ["read"]))))
    h(h.engine.invite("eve", ["read"]))
    for token in (old, newest):
        h(h.engine.revoke_token(token.id))
    h.clock.advance(Limits().keep_audit)
    h(h.engine.prune())
    assert len(h(h.engine.tokens())) == 5  # none is forgotten before the time
    h.clock.advance(SESSION + 1)
    h(h.engine.prune())
    left = {token.id for token in h(h.engine.tokens())}
    assert left == {lasting.id, newest.id}
    h(h.engine.revoke_token(lasting.id))
    h.clock.advance(Limits().keep_audit + 1)
    h(h.engine.prune())
    assert [token.id for token in h(h.engine.tokens())] == [newest.id]
    assert h(h.engine.any_token())


def test_a_store_where_nobody_made_a_token_has_none_whoever_signed_in(h: Harness) -> None:
    assert not h(h.engine.any_token())
    h(h.engine.sign_in(h(h.engine.invite("bob", ["read"]))))
    assert not h(h.engine.any_token())
    token, _ = made(h)
    assert h(h.engine.any_token())
    h(h.engine.revoke_token(token.id))
    assert h(h.engine.any_token())


# Sessions


def test_an_invitation_becomes_one_session(h: Harness) -> None:
    invitation = h(h.engine.invite("bob", ["read", "submit"]))
    h.clock.advance(INVITATION - 1)
    session, secret = h(h.engine.sign_in(invitation))
    assert (session.name, session.scopes, session.kind) == ("bob", ("read", "submit"), "session")
    assert found(h, secret)
    with pytest.raises(Unauthorized):
        h(h.engine.sign_in(invitation))
    assert len(h(h.engine.tokens())) == 1
    h.clock.advance(SESSION - 1)
    assert found(h, secret)
    h.clock.advance(1)
    assert found(h, secret) is None


def test_an_invitation_is_no_token_and_a_token_no_invitation(h: Harness) -> None:
    invitation = h(h.engine.invite("bob", ["admin"]))
    _, secret = made(h)
    assert found(h, invitation) is None
    assert found(h, "wl_" + invitation.removeprefix("wli_")) is None
    for wrong in (secret, "wli_" + secret.removeprefix("wl_"), invitation[:-1], "", "\0", "wli_" + 44 * "A"):
        with pytest.raises(Unauthorized):
            h(h.engine.sign_in(wrong))
    assert h(h.engine.sign_in(invitation))


def test_a_late_or_revoked_invitation_is_refused(h: Harness) -> None:
    revoked = h(h.engine.invite("bob", ["read"]))
    h(h.engine.revoke_token(h(h.engine.tokens())[0].id))
    with pytest.raises(Unauthorized):
        h(h.engine.sign_in(revoked))
    late = h(h.engine.invite("bob", ["read"]))
    h.clock.advance(INVITATION)
    with pytest.raises(Unauthorized):
        h(h.engine.sign_in(late))


def test_a_sign_in_whose_commit_is_unknown_is_not_lost(h: Harness) -> None:
    invitation = h(h.engine.invite("bob", ["read"]))
    FAULTS.arm("sign_in.after_commit=raise:unknown@1")
    assert found(h, h(h.engine.sign_in(invitation))[1])


async def _race(engine: Engine, invitation: str, many: int) -> list[Token]:
    async def one() -> Token | None:
        try:
            return (await engine.sign_in(invitation))[0]
        except Unauthorized:
            return None

    return [token for token in await asyncio.gather(*(one() for _ in range(many))) if token is not None]


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_many_who_sign_in_with_one_invitation_at_once_get_one_session(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async def main() -> None:
        clock = SystemClock()
        if kind == "postgres":
            url = request.getfixturevalue("emptied_postgres")
            run_sync(BlockingPostgres(url, clock).close())
            stores: list[Any] = [AsyncPostgres(url, clock) for _ in range(2)]
        else:
            stores = [AsyncSqlite(tmp_path / "windlass.db", clock) for _ in range(2)]
        engines = [Engine(store, clock) for store in stores]
        for _ in range(10):
            invitation = await engines[0].invite("bob", ["read"])
            sessions = await asyncio.gather(*(_race(engine, invitation, 8) for engine in engines))
            assert sum(map(len, sessions)) == 1
        assert len(await engines[0].tokens()) == 10
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_processes_that_sign_in_at_once_get_one_session(tmp_path: Path) -> None:
    clock = SystemClock()
    stores = [BlockingSqlite(tmp_path / "windlass.db", clock) for _ in range(4)]
    invitation = run_sync(Engine(stores[0], clock).invite("bob", ["read"]))
    barrier, won = threading.Barrier(4), []

    def go(engine: Engine) -> None:
        barrier.wait()
        with suppress(Unauthorized):
            won.append(run_sync(engine.sign_in(invitation)))

    threads = [threading.Thread(target=go, args=(Engine(store, clock),)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    for store in stores:
        run_sync(store.close())


# Tickets


def test_a_ticket_is_good_for_a_minute_in_every_process(h: Harness) -> None:
    token, _ = made(h)
    ticket, expires_at = h.engine.ticket(token)
    assert expires_at == h.clock.now() + TICKET
    h.clock.advance(TICKET - 1)
    assert h(h.another().engine.find_ticket(ticket)) == token
    h.clock.advance(1)
    assert h(h.engine.find_ticket(ticket)) is None


def test_a_ticket_ends_with_its_token(h: Harness) -> None:
    revoked, expired = made(h)[0], made(h, expires_in=1_000)[0]
    tickets = [h.engine.ticket(token)[0] for token in (revoked, expired)]
    h(h.engine.revoke_token(revoked.id))
    h.clock.advance(1_000)
    assert [h(h.engine.find_ticket(ticket)) for ticket in tickets] == [None, None]


def test_a_ticket_that_was_changed_is_refused(h: Harness) -> None:
    token, other = made(h)[0], made(h)[0]
    ticket, expires_at = h.engine.ticket(token)
    id, _, signature = ticket.split(".")
    changed = [
        f"{other.id}.{expires_at}.{signature}",
        f"{id}.{expires_at + 1}.{signature}",
        f"{id}.{expires_at}.{signature[:-1]}",
        f"{id}.{expires_at}.{signature.swapcase()}",
        f"{id}.{expires_at}.",
        f"{id}.{expires_at}",
        f".{expires_at}.{signature}",
        f"{id}.{expires_at}.{h.engine.ticket(other)[0].rpartition('.')[2]}",
        "",
        ticket + "\n",
        ticket.replace(str(expires_at), "9" * 16),
    ]
    assert [h(h.engine.find_ticket(text)) for text in changed] == [None] * len(changed)


def test_nobody_can_sign_a_ticket_that_lasts_for_long(h: Harness) -> None:
    token, _ = made(h)
    with pytest.raises(BadInput):
        h.engine.ticket(token, expires_in=HOUR + 1)
    later = replace(token)
    h.clock.jump(DAY)
    ticket, _ = h.engine.ticket(later)
    h.clock.jump(-DAY)
    assert h(h.engine.find_ticket(ticket)) is None


def test_an_invitation_signs_no_tickets(h: Harness) -> None:
    h(h.engine.invite("bob", ["read"]))
    (invited,) = h(h.engine.tokens())
    assert h(h.engine.find_ticket(h.engine.ticket(invited)[0])) is None


# The audit


def test_an_act_leaves_an_entry_with_who_did_it(h: Harness) -> None:
    token, _ = h(h.engine.by("root", "create", "token ann").create_token("ann", ["read"]))
    h.clock.advance(1)
    h(h.engine.by("eve", "revoke", f"token {token.id}").revoke_token(token.id))
    page = h(h.engine.audit())
    assert [(entry.actor, entry.what, entry.subject) for entry in page.entries] == [
        ("eve", "revoke", f"token {token.id}"),
        ("root", "create", "token ann"),
    ]
    assert page.entries[0].at == page.entries[1].at + 1
    assert page.cursor is None


def test_an_act_that_fails_leaves_no_entry(h: Harness) -> None:
    with pytest.raises(BadInput):
        h(h.engine.by("root", "create", "token").create_token("", ["read"]))
    FAULTS.arm("create_token.before_commit=raise:busy")
    with pytest.raises(StoreBusy):
        h(h.engine.by("root", "create", "token").create_token("ann", ["read"]))
    FAULTS.arm("")
    assert h(h.engine.audit()).entries == []


def test_what_a_creation_provides_for_its_runs_is_part_of_one_entry(h: Harness) -> None:
    """A resource and a lane that have no row yet are written before the runs, by batches that are no act of their own."""
    run = NewRun("mail", options=Options(uses=(Use("gpu"),)))
    h(h.engine.by("ann", "create", "a run").create([run]))
    assert [(entry.actor, entry.what) for entry in h(h.engine.audit()).entries] == [("ann", "create")]


def test_the_audit_is_read_in_pages_newest_first(h: Harness) -> None:
    for n in range(7):
        h(h.engine.by("root", "create", f"token {n}").create_token(str(n), ["read"]))
    subjects, cursor = [], None
    for _ in range(4):
        page = h(h.engine.audit(cursor=cursor, count=3))
        subjects += [entry.subject for entry in page.entries]
        cursor = page.cursor
        if cursor is None:
            break
    assert subjects == [f"token {n}" for n in reversed(range(7))]


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1_0", "٣", "9" * 19])
def test_a_cursor_that_is_none_is_refused(h: Harness, cursor: str) -> None:
    with pytest.raises(BadInput):
        h(h.engine.audit(cursor=cursor))


def test_old_entries_are_forgotten_in_slices(h: Harness) -> None:
    for n in range(3):
        h(h.engine.by("root", "create", f"token {n}").create_token(str(n), ["read"]))
    h.clock.advance(Limits().keep_audit)
    h(h.engine.by("root", "create", "token 3").create_token("3", ["read"]))
    h(h.engine.prune())
    assert len(h(h.engine.audit()).entries) == 4
    h.clock.advance(1)
    assert h(h.engine.records.access.drop_audit(h.clock.now() - Limits().keep_audit, 2)) == 2
    h(h.engine.prune())
    assert [entry.subject for entry in h(h.engine.audit()).entries] == ["token 3"]
