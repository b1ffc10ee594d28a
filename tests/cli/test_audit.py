"""What a person changes at a terminal leaves an entry in the audit: on the store itself the same one as over a hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.test_cli import World
from tests.served import ServedHub
from windlass.cli import codes
from windlass.cli.context import actor
from windlass.cli.rows import CommandRow, all_rows
from windlass.clock import ManualClock
from windlass.engine import Engine
from windlass.model import Member, NewGroup, NewRun, WorkerInfo
from windlass.store.base import run_sync
from windlass.webhooks import STANDARD

# What the commands are about


def nothing(w: World) -> str:
    return "it"


def queued(w: World) -> str:
    return w.create()


def ended(w: World) -> str:
    run_sync(w.engine.cancel(run := w.create()))
    return run


def group(w: World) -> str:
    return run_sync(w.engine.create_group(NewGroup((Member(NewRun("mail")),)))).id


def ended_group(w: World) -> str:
    run_sync(w.engine.cancel_group(id := group(w)))
    return id


def paused(w: World) -> str:
    run_sync(w.engine.pause("queue", "it"))
    return "it"


def resource(w: World) -> str:
    run_sync(w.engine.set_resource("it", capacity=1))
    return "it"


def lane(w: World) -> str:
    run_sync(w.engine.cancel(w.create("report")))
    return str(next(lane.id for lane in run_sync(w.engine.all_lanes()) if lane.job == "report"))


def placeholder(w: World) -> str:
    run_sync(w.engine.records.jobs.add_placeholders(["it"], None, 10, 10, w.clock.now()))
    return "it"


def silent_worker(w: World) -> str:
    run_sync(Engine(w.store, ManualClock(w.clock.now() - 3_600_000)).register(WorkerInfo("it")))
    return "it"


def schedule(w: World) -> str:
    run_sync(w.engine.schedule("it", "mail", every="1h"))
    return "it"


def token(w: World) -> str:
    return run_sync(w.engine.create_token("it", ["read"]))[0].id


def webhook(w: World) -> str:
    return run_sync(w.engine.add_webhook("https://example.com/", states=("queued",))).id


def delivery(w: World) -> str:
    endpoint = webhook(w)
    w.create()
    run_sync(w.engine.make_deliveries(STANDARD.content(w.engine)))
    return run_sync(w.engine.deliveries(endpoint)).deliveries[0].id


class Act(NamedTuple):
    """How a command is called, what it leaves in the audit, and what must be there before. `{}` is the name or the id of that."""

    words: str
    entry: tuple[str, str]
    before: Callable[[World], str] = nothing
    hub: bool = True  # whether it can be asked through one


ACTS = {
    "cancel": Act("{}", ("cancel", "run {}"), queued),
    "move": Act("{} --top", ("move", "run {}"), queued),
    "rerun": Act("{}", ("rerun", "run {}"), ended),
    "groups cancel": Act("{}", ("cancel", "group {}"), group),
    "groups rerun": Act("{}", ("rerun", "group {}"), ended_group),
    "pause": Act("--all", ("pause", "system")),
    "resume": Act("--queue {}", ("resume", "queue {}"), paused),
    "queues set": Act("{} --aging 60s", ("set", "queue {}")),
    "retention set": Act("--others 90d", ("set", "retention")),
    "resources set": Act("{} --capacity 2", ("set", "resource {}")),
    "resources drop": Act("{}", ("remove", "resource {}"), resource),
    "lanes drop": Act("{}", ("remove", "lane {}"), lane),
    "jobs drop": Act("{}", ("remove", "job {}"), placeholder),
    "workers drop": Act("{}", ("remove", "worker {}"), silent_worker),
    "schedules add": Act("{} mail --every 2h", ("schedule", "schedule {}")),
    "schedules set": Act("{} --every 3h", ("edit", "schedule {}"), schedule),
    "schedules enable": Act("{}", ("edit", "schedule {}"), schedule),
    "schedules disable": Act("{}", ("edit", "schedule {}"), schedule),
    "schedules trigger": Act("{}", ("trigger", "schedule {}"), schedule),
    "schedules remove": Act("{}", ("remove", "schedule {}"), schedule),
    "tokens create": Act("{} --scopes read", ("create", "token {}"), hub=False),
    "tokens rotate": Act("{}", ("rotate", "token {}"), token, hub=False),
    "tokens revoke": Act("{}", ("revoke", "token {}"), token, hub=False),
    "webhooks add": Act("https://example.com/", ("add", "webhook https://example.com/"), hub=False),
    "webhooks set": Act("{} --disabled", ("edit", "webhook {}"), webhook, hub=False),
    "webhooks rotate": Act("{}", ("rotate", "webhook {}"), webhook, hub=False),
    "webhooks remove": Act("{}", ("remove", "webhook {}"), webhook, hub=False),
    "webhooks resend": Act("{}", ("resend", "delivery {}"), delivery, hub=False),
}

READS = (
    "runs", "show", "logs", "why", "jobs", "jobs show", "groups list", "groups show", "pauses", "queues", "queues list", "retention",
    "retention show", "resources", "resources list", "resources show", "lanes", "slots", "schedules list", "schedules preview",
    "schedules skips", "workers", "stats", "doctor", "tokens list", "webhooks list", "webhooks deliveries", "audit", "config",
    "faults", "completion", "dialects", "backup",
)  # fmt: skip

NEED_NO_ENTRY = {
    **dict.fromkeys(READS, "it changes nothing"),
    "enqueue": "a run has a journal, and over a hub leaves no entry either",
    "dialects forge import": "runs have a journal, as those that are enqueued",
    "slot": "a direct call ends with its command, and is in the list of slots until then",
    "dispatch": "it is a program, and what it does any sweep does",
    "consume": "it is a program, as a worker is",
    "work": "it is a program, and what it defines has an owner",
    "hub": "it is a program, and those who ask it have entries of their own",
    "up": "the link that it prints has an entry, by the command's own hub",
    "migrate": "it makes the table of the audit, or changes it",
    "restore": "the file is replaced as a whole, and the audit in it with it",
}


def commands(row: CommandRow, path: str) -> Iterator[str]:
    """Every command that can be called, as it is written."""
    if row.function is not None:
        yield path
    for name, inner in row.commands.rows.items() if row.commands is not None else ():
        yield from commands(inner, f"{path} {name}")


def test_every_command_leaves_an_entry_or_says_why_it_needs_none() -> None:
    assert ACTS.keys() & NEED_NO_ENTRY.keys() == set()
    assert ACTS.keys() | NEED_NO_ENTRY.keys() == {command for _, row in all_rows() for command in commands(row, row.name)}


@pytest.fixture(params=["file", "postgres"])
def w(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    world = World(request.getfixturevalue("emptied_postgres") if request.param == "postgres" else "shop.db", capsys)
    yield world
    run_sync(world.store.close())


def entries(w: World) -> list[tuple[str, str, str]]:
    return [(entry.actor, entry.what, entry.subject) for entry in run_sync(w.engine.audit(count=1_000)).entries]


def called(w: World, command: str, act: Act, *door: str) -> tuple[tuple[str, str], list[tuple[str, str, str]]]:
    """The entry that a command should have left, and those that it has."""
    it = act.before(w)
    before = len(entries(w))
    w(*command.split(), *act.words.format(it).split(), *door)
    what, subject = act.entry
    return (what, subject.format(it)), entries(w)[: len(entries(w)) - before]


def test_what_is_done_on_the_store_leaves_the_same_entry_as_over_a_hub(w: World) -> None:
    served = ServedHub(w.address)
    for command, act in ACTS.items():
        if act.hub:
            for door, name in (("--store", w.address), actor()), (("--hub", served.url), "anonymous"):
                (what, subject), left = called(w, command, act, *door)
                assert left == [(name, what, subject)], f"windlass {command} {door[0]}"
    served.stop()


def test_what_is_refused_leaves_no_entry(w: World) -> None:
    run_sync(w.engine.register(WorkerInfo("alive")))
    waiting, over = w.create("later"), ended(w)
    used = next(lane.id for lane in run_sync(w.engine.all_lanes()) if lane.job == "later")
    for code, words in [
        (codes.NOT_FOUND, "workers drop nobody"), (codes.CONFLICT, "workers drop alive"),
        (codes.NOT_FOUND, "jobs drop nothing"), (codes.CONFLICT, "jobs drop mail"), (codes.CONFLICT, "jobs drop later"),
        (codes.NOT_FOUND, "lanes drop 99"), (codes.CONFLICT, f"lanes drop {used}"), (codes.NOT_FOUND, "resources drop gpu"),
        (codes.CONFLICT, f"cancel {over}"), (codes.CONFLICT, f"move {over} --top"), (codes.CONFLICT, f"rerun {waiting}"),
        (codes.NOT_FOUND, "schedules remove nightly"), (codes.NOT_FOUND, "schedules disable nightly"), (codes.USAGE, "retention set"),
        (codes.NOT_FOUND, f"groups cancel {over}"), (codes.NOT_FOUND, f"tokens revoke {over}"),
        (codes.NOT_FOUND, f"webhooks remove {over}"),
    ]:  # fmt: skip
        w(*words.split(), "--store", w.address, exits=code)
        assert entries(w) == [], words


def test_what_is_asked_of_the_store_alone_leaves_an_entry_too(w: World) -> None:
    for command, act in ACTS.items():
        if not act.hub:
            (what, subject), left = called(w, command, act, "--store", w.address)
            assert left == [(actor(), what, subject)], f"windlass {command}"
