"""What commands print as JSON: the same whether a store or a hub is asked, and one form of time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.served import ServedHub
from tests.workers import until
from windlass import cli
from windlass.api.views import FAILURE, REASON
from windlass.cli import about, completion, hub, parts, slots, stores, work
from windlass.cli import dialects as cli_dialects
from windlass.cli.context import CommandContext, actor
from windlass.cli.parser import make_parser
from windlass.cli.rows import CommandRow, all_rows
from windlass.clock import SystemClock
from windlass.config.opening import open_store
from windlass.durations import SHORTEST_KEEP
from windlass.engine import Engine, Reason
from windlass.machine import Fail, Succeed
from windlass.model import Failure, Member, NewGroup, NewRun, Options, Refusals, Use, WorkerInfo
from windlass.store.base import run_sync

HOUR = 3600 * 1000
DAY = 24 * HOUR
SIDES = ("left", "right")

READS = (
    "runs",
    "runs --state failed --limit 1",
    "jobs",
    "jobs --limit 1",
    "jobs show mail",
    "show {done}",
    "show {failed}",
    "show {held}",
    "show {member}",
    "show nobody",
    "logs {done}",
    "logs {done} --follow",
    "why {done}",
    "why {queued}",
    "why {later}",
    "why {held}",
    "why {paused}",
    "groups list",
    "groups list --limit 1",
    "groups show {group} --limit 1",
    "pauses",
    "queues list",
    "retention show",
    "resources list",
    "resources show gpu --key ann",
    "lanes",
    "lanes --limit 1",
    "slots",
    "workers",
    "stats --minutes 5",
    "doctor",
    "schedules list",
    "schedules list --limit 1",
    "schedules preview nightly --from 2030-01-01T00:00Z",
    "schedules preview nightly --from 2030-01-01T00:00Z --down 2030-01-01T00:00Z..2030-01-04T00:00Z",
    "schedules skips often",
    "webhooks list",
    "webhooks deliveries {webhook}",
    "webhooks deliveries {webhook} --limit 1",
    "tokens list",
    "tokens list --limit 1",
    "audit",
    "audit --limit 1",
)

WRITES = (
    "enqueue mail to=ann --delay 1h",
    "cancel {cancelled} --reason no",
    "move {moved} --top",
    "rerun {done}",
    "groups cancel {group}",
    "groups rerun {ended_group}",
    "pause --queue new-{side} --reason no",
    "resume --queue paused-{side}",
    "queues set new-{side} --aging 60s",
    "queues set aging_priority-{side} --aging none",
    "retention set --others 30d",
    "resources set new-{side} --capacity 2 --rate 10/1m",
    "resources drop dropped-{side}",
    "lanes drop {lane}",
    "jobs drop ghost-{side}",
    "workers drop old-{side}",
    "schedules add new-{side} mail --every 1h",
    "schedules set changed-{side} --every 2h",
    "schedules enable off-{side}",
    "schedules disable on-{side}",
    "schedules trigger on-{side}",
    "schedules remove removed-{side}",
    "webhooks add https://example.com/ --name new-{side} --disabled",
    "webhooks set {webhook} --job mail",
    "webhooks rotate {webhook}",
    "webhooks remove {removed_webhook}",
    "webhooks resend {delivery}",
    "tokens create new-{side} --scopes read --expires 90d",
    "tokens rotate {token}",
    "tokens revoke {revoked}",
)

WITHOUT_VERB: dict[Callable[[CommandContext], int], str] = {
    stores.migrate: "the store's own",
    stores.backup: "the store's own",
    stores.restore: "the store's own",
    work.work: "serves",
    parts.dispatch: "serves",
    parts.consume: "serves",
    hub.up: "serves",
    hub.hub: "serves",
    slots.slot: "prints what its command prints",
    about.show_config: "of this process",
    about.list_faults: "of this process",
    completion.completion: "of this process",
    cli_dialects.list_dialects: "of this process",
    cli_dialects.import_forge: "about a file",
}


class Still:
    """A clock that stands still, for the hub and the commands alike: nothing differs only because time has passed."""

    def __init__(self) -> None:
        self.at = SystemClock().now()


class Subjects(dict[str, str]):
    """What the commands are about."""


class Scene:
    """A store in which there is something of everything, and a hub over it."""

    def __init__(self, engine: Engine, still: Still) -> None:
        self.engine, self.still = engine, still
        self.secret, self.places = "", dict[str, tuple[str, str]]()
        self.read = Subjects()
        self.write = {side: Subjects(side=side) for side in SIDES}

    def fill(self) -> None:
        self._ghosts()
        run_sync(self.engine.define("mail", payload={"copies": 1}, options=Options(max_attempts=1)))
        run_sync(self.engine.set_resource("gpu", capacity=3))
        run_sync(self.engine.define("train", options=Options(queue="slow", uses=(Use("gpu", per="user"),))))
        self._webhooks()
        self._schedules()
        self._runs(self.read)
        for side in SIDES:
            self._runs(self.write[side])
        self._controls()
        run_sync(self.engine.register(WorkerInfo("idle", slots=2, tags=("linux",))))
        self._tokens()

    def _ghosts(self) -> None:
        """Jobs that nobody has defined and whose runs are gone, and workers that are silent."""
        self.still.at -= HOUR
        ghosts = [NewRun(f"ghost-{side}", options=Options(keep=SHORTEST_KEEP)) for side in SIDES]
        made = run_sync(self.engine.create(ghosts, undefined="wait"))
        for one in made:
            run_sync(self.engine.cancel(one.id))
        for side in SIDES:
            run_sync(self.engine.register(WorkerInfo(f"old-{side}", slots=1)))
        self.still.at += HOUR
        run_sync(self.engine.prune())

    def _create(self, job: str = "mail", **fields: Any) -> str:
        payload = fields.pop("payload", {"whom": "ann"})
        return run_sync(self.engine.create([NewRun(job, payload, **fields)]))[0].id

    def _runs(self, into: Subjects) -> None:
        into["done"], into["failed"] = self._create(), self._create()
        into["group"] = self._group(into, "member")
        into["ended_group"] = self._group(into, "ended_member")
        run_sync(self.engine.cancel_group(into["ended_group"]))
        into["held"] = self._create("train", payload={"user": "ann"})
        held = {run.id: run for run in run_sync(self.engine.claim(WorkerInfo("w", queues=("default", "slow"), slots=99), count=10))}
        for run in (held[into["done"]], held[into["failed"]]):
            run_sync(self.engine.start(run.id, run.token or ""))
            run_sync(self.engine.log(run.id, run.token or "", [(1, "one"), (2, "two")]))
        good, bad = (held[into[name]] for name in ("done", "failed"))
        run_sync(self.engine.report(good.id, Succeed(token=good.token, output='{"sent":[1,2]}')))
        run_sync(self.engine.report(bad.id, Fail(token=bad.token, error=Failure("boom", "it broke", "a\nb"))))
        for name in ("queued", "cancelled", "moved"):
            into[name] = self._create(options=Options(queue="later"))
        into["later"] = self._create(due_at=self.still.at + DAY)
        into["paused"] = self._create(options=Options(queue="paused"))

    def _group(self, into: Subjects, name: str) -> str:
        members = tuple(Member(NewRun("mail", {"n": n}, Options(queue="grouped")), name=f"m{n}") for n in range(2))
        group = run_sync(self.engine.create_group(NewGroup(members, name="a group")))
        into[name] = run_sync(self.engine.members(group.id))[0].id
        return group.id

    def _controls(self) -> None:
        run_sync(self.engine.pause("queue", "paused", reason="no", by="ann"))
        run_sync(self.engine.reserve("gpu", key="ann", actor="ann"))
        run_sync(self.engine.set_queue("grouped", aging=60_000))
        for side in SIDES:
            run_sync(self.engine.pause("queue", f"paused-{side}"))
            run_sync(self.engine.set_queue(f"aging_priority-{side}", aging=1_000))
            run_sync(self.engine.set_resource(f"dropped-{side}", capacity=1))
            run_sync(self.engine.cancel(self._create(options=Options(queue=f"lane-{side}"))))
        lanes = {lane.queue: str(lane.id) for lane in run_sync(self.engine.all_lanes())}
        for side in SIDES:
            self.write[side]["lane"] = lanes[f"lane-{side}"]

    def _schedules(self) -> None:
        """They are a day old, and some of their instants have passed."""
        self.still.at -= DAY
        run_sync(self.engine.schedule("nightly", "mail", cron="0 3 * * *", zone="Europe/Paris", missed="all"))
        run_sync(self.engine.schedule("coded", "mail", every="1h", by_code=True))
        run_sync(self.engine.schedule("often", "mail", every="1h", missed="skip"))
        for side in SIDES:
            for name in ("changed", "on", "removed"):
                run_sync(self.engine.schedule(f"{name}-{side}", "mail", every="1h"))
            run_sync(self.engine.schedule(f"off-{side}", "mail", every="1h", enabled=False))
        self.still.at += DAY
        while run_sync(self.engine.fire_all()):
            pass

    def _webhooks(self) -> None:
        add = self.engine.by("ann", "add", "webhook").add_webhook
        # Nothing listens there, so the first try fails; the second is a day away.
        self.read["webhook"] = run_sync(add("https://127.0.0.1/", states=("succeeded",), delays=(DAY,))).id
        for side in SIDES:
            self.write[side]["webhook"] = run_sync(add("https://example.com/", name=f"changed-{side}", enabled=False)).id
            self.write[side]["removed_webhook"] = run_sync(add("https://example.com/", name=f"removed-{side}", enabled=False)).id

    def _tokens(self) -> None:
        self.secret = run_sync(self.engine.create_token(actor(), ("admin",)))[1]
        for side in SIDES:
            for name in ("token", "revoked"):
                self.write[side][name] = run_sync(self.engine.create_token(f"{name}-{side}", ("read",)))[0].id

    def settle(self) -> None:
        """Wait until the hub has sent what there is to send, and knows its caller."""
        sent = until(lambda: found if len(found := self._sent()) == 1 + len(SIDES) else None)
        for side, delivery in zip(SIDES, sent, strict=False):
            self.write[side]["delivery"] = delivery

    def _sent(self) -> list[str]:
        return [delivery.id for delivery in run_sync(self.engine.deliveries(self.read["webhook"])).deliveries if delivery.tries]


@pytest.fixture(scope="module")
def still() -> Iterator[Still]:
    still = Still()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemClock, "now", lambda _: still.at)
        patch.setattr("windlass.hub.doctor.BLOCKED", DAY)  # a machine that is busy is none of the differences
        for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
            patch.delenv(name)
        yield still


@pytest.fixture(scope="module")
def scene(still: Still, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("json")
    clock = SystemClock()
    engine = Engine(open_store(str(folder / "shop.db"), clock, blocking=True), clock)
    scene = Scene(engine, still)
    scene.fill()
    served = ServedHub(folder / "shop.db")
    scene.places = {"left": ("--store", str(folder / "shop.db")), "right": ("--hub", served.url)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINDLASS_HUB_TOKEN", scene.secret)
        patch.chdir(folder)
        assert cli.main(["runs", "--hub", served.url]) == 0  # the token has been used
        scene.settle()
        yield scene
    served.stop()
    run_sync(engine.close())


class Answer:
    """The exit code, documents and error of a command."""

    def __init__(self, words: str, place: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
        self.code = cli.main([*words.split(), *place, "--json"])
        captured = capsys.readouterr()
        self.documents = [json.loads(line, object_hook=_without_the_clock) for line in captured.out.splitlines()]
        self.error = captured.err


def _without_the_clock(document: dict[str, Any]) -> dict[str, Any]:
    """What doctor finds, but that the clock stands still."""
    if "findings" in document:
        document["findings"] = [finding for finding in document["findings"] if finding["code"] != "clock_was_set"]
    return document


def _instants(value: Any) -> Iterator[Any]:
    """Everything that stands where an instant does."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("at", "from", "to", "since", "until", "first") or name.endswith(("_at", "_until", "_for")):
                yield from inner if isinstance(inner, list) else [inner]
            else:
                yield from _instants(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _instants(inner)


def _check_instants(documents: list[Any]) -> None:
    for instant in _instants(documents):
        assert instant is None or re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", instant)


@pytest.mark.parametrize("words", READS)
def test_a_command_prints_the_same_from_a_store_and_through_a_hub(words: str, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    asked = words.format(**scene.read)
    near, far = (Answer(asked, scene.places[side], capsys) for side in SIDES)
    assert (near.code, near.documents, near.error) == (far.code, far.documents, far.error)
    assert bool(near.documents) is (words != "show nobody")
    _check_instants(near.documents)


def _masked(documents: list[Any], side: str) -> Any:
    """Without what two things of the same kind differ in: names, ids, secrets."""
    text = json.dumps(documents).replace(f"-{side}", "")
    return json.loads(re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|(wl|whsec)_[\w+/=-]+", "...", text))


@pytest.mark.parametrize("words", WRITES)
def test_a_command_that_changes_something_prints_the_same_form(words: str, scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    near, far = (Answer(words.format(**scene.write[side]), scene.places[side], capsys) for side in SIDES)
    assert (near.code, near.error, far.code, far.error) == (0, "", 0, "")
    assert _masked(near.documents, "left") == _masked(far.documents, "right")
    _check_instants(near.documents)


def _functions(row: CommandRow) -> Iterator[Callable[[CommandContext], int]]:
    if row.function is not None:
        yield row.function
    for inner in row.commands.rows.values() if row.commands is not None else ():
        yield from _functions(inner)


def test_every_command_that_has_a_verb_is_compared() -> None:
    compared = {make_parser().parse_args(re.sub("{.*?}", "1", words).split()).run for words in (*READS, *WRITES)}
    assert compared | WITHOUT_VERB.keys() == {function for _, row in all_rows() for function in _functions(row)}
    assert not compared & WITHOUT_VERB.keys()


def test_the_secret_that_a_hub_tells_is_the_one_that_counts(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """And no other: of an endpoint that is only read, a hub tells how many secrets sign."""
    token = Answer("tokens create told --scopes read", scene.places["right"], capsys).documents[0]
    found = run_sync(scene.engine.find_token(token["secret"]))
    assert found is not None
    assert found.id == token["token"]["id"]
    made = Answer("webhooks add https://example.com/ --disabled", scene.places["right"], capsys).documents[0]
    told = Answer(f"webhooks rotate {made['webhook']['id']}", scene.places["right"], capsys).documents[0]
    assert [secret.key for secret in run_sync(scene.engine.get_webhook(made["webhook"]["id"])).secrets] == [told["secret"], made["secret"]]
    assert told["webhook"]["secrets"] == 2


def test_instants_inside_a_failure_and_a_reason_are_shown_and_read_back() -> None:
    failure = Failure("unfit", "it does not fit", refused=Refusals(("a", "b"), 2, 1_800_000_000_000, 3, "w"))
    view = FAILURE.show(failure)
    assert view.refused.since == "2027-01-15T08:00:00.000Z"
    assert FAILURE.read(view) == failure
    reason = Reason("paused", "It is paused.", {"at": 1_800_000_000_000, "lease_until": None, "actor": "ann", "count": 3})
    assert REASON.show(reason).data == {"at": "2027-01-15T08:00:00.000Z", "lease_until": None, "actor": "ann", "count": 3}
    assert REASON.read(REASON.show(reason)) == reason
