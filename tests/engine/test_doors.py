"""What no code accepts is refused where it is asked for, whatever the door, and what was meant is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import Harness, folder_for, open_store
from tests.served import LeapingClock, ServedHub
from windlass import App, State, cli
from windlass.app.signatures import Signature
from windlass.client import Client
from windlass.clock import ManualClock
from windlass.config.opening import open_store as open_any
from windlass.engine import Engine
from windlass.errors import BadInput, TooLarge
from windlass.model import Key, Limits, Member, NewGroup, NewRun, Options, WorkerInfo
from windlass.store.base import run_sync

SILENCE = Limits().worker_silence


def old(image: str, width: int = 320) -> None: ...


def new(image: str, height: int = 240) -> None: ...


def newest(picture: str) -> None: ...


def schema(function: Callable[..., Any]) -> dict[str, Any]:
    document = Signature(function, "thumbnail").schema
    assert document is not None
    return document


def fingerprint(function: Callable[..., Any]) -> str:
    return Signature(function, "thumbnail").fingerprint


@pytest.fixture(params=["memory", "postgres"])
def h(request: pytest.FixtureRequest) -> Iterator[Harness]:
    clock = ManualClock()
    harness = Harness(open_store(request.param, folder_for(request.param, request), request, clock), clock)
    define(harness, old)
    yield harness
    run_sync(harness.store.close())


def define(h: Harness, function: Callable[..., Any] | None, **words: Any) -> None:
    h(h.engine.define("thumbnail", schema=None if function is None else schema(function), **words))


def lives(h: Harness, name: str, function: Callable[..., Any] | None, **can: Any) -> None:
    """A worker that is alive, and has told what its code takes, or not."""
    told = None if function is None else {"thumbnail": fingerprint(function)}
    h(h.engine.register(WorkerInfo(name, **{"jobs": ("thumbnail",)} | can), about={"host": "here"}, schemas=told))


def runs(h: Harness) -> int:
    return len(h(h.engine.runs()).runs)


def refused(h: Harness, payload: Any) -> BadInput:
    with pytest.raises(BadInput) as error:
        h.create("thumbnail", payload)
    assert runs(h) == 0
    return error.value


# Whose word counts


def test_what_the_last_definer_does_not_take_is_refused_and_the_member_that_was_meant_is_named(h: Harness) -> None:
    error = refused(h, {"imag": "cat.png"})
    assert error.message == "The payload does not fit the job 'thumbnail': 'imag' is unknown; 'image' may be meant."
    assert error.hint == "It takes image (a text). It may take width (an integer)."
    assert (error.code, error.status) == ("bad_input", 400)
    assert "'width' must be an integer, not 'wide'" in refused(h, {"image": "cat.png", "width": "wide"}).message
    assert "'image' is missing" in refused(h, None).message
    assert "it must be an object" in refused(h, ["cat.png"]).message
    h.create("thumbnail", {"image": "cat.png", "width": 5})


def test_the_payload_that_counts_is_the_one_that_the_handler_gets(h: Harness) -> None:
    define(h, old, payload={"image": "usual.png"})
    h.create("thumbnail")
    h.create("thumbnail", {"width": 5})
    define(h, old, payload={"imag": "usual.png"})
    with pytest.raises(BadInput, match="'imag' is unknown"):
        h.create("thumbnail", {"image": "cat.png"})


def test_a_definer_that_has_told_nothing_accepts_everything(h: Harness) -> None:
    define(h, None)
    h.create("thumbnail", {"imag": "cat.png"})
    h.define("other")
    h.create("other", {"imag": "cat.png"})
    h(h.engine.create([NewRun("ghost", {"imag": "cat.png"})], undefined="wait"))


def test_old_and_new_code_are_both_served_while_both_live(h: Harness) -> None:
    lives(h, "before", old)
    define(h, new)
    lives(h, "after", new)
    h.create("thumbnail", {"image": "cat.png", "width": 5})
    h.create("thumbnail", {"image": "cat.png", "height": 5})
    with pytest.raises(BadInput, match="'imag' is unknown; 'image' may be meant"):
        h.create("thumbnail", {"imag": "cat.png"})
    h(h.engine.leave("before", 0))
    with pytest.raises(BadInput, match="'width' is unknown"):
        h.create("thumbnail", {"image": "cat.png", "width": 5})
    h.create("thumbnail", {"image": "cat.png", "height": 5})


def test_a_worker_that_went_silent_does_not_count(h: Harness) -> None:
    lives(h, "before", old)
    define(h, new)
    h.clock.advance(SILENCE)
    h.create("thumbnail", {"image": "cat.png", "width": 5})
    h.clock.advance(1)
    with pytest.raises(BadInput, match="'width' is unknown"):
        h.create("thumbnail", {"image": "cat.png", "width": 5})


def test_code_of_which_nothing_is_known_may_accept_it(h: Harness) -> None:
    h.clock.advance(1)
    for name, told in (("other language", None), ("lost", newest)):
        lives(h, name, told)
        h.create("thumbnail", {"imag": "cat.png"})
        h(h.engine.leave(name, 0))
        with pytest.raises(BadInput):
            h.create("thumbnail", {"imag": "cat.png"})
    lives(h, "of other jobs", None, jobs=("other",))
    with pytest.raises(BadInput):
        h.create("thumbnail", {"imag": "cat.png"})


def test_another_process_learns_of_new_code_before_it_refuses(h: Harness) -> None:
    other = h.another()
    with pytest.raises(BadInput):
        other.create("thumbnail", {"image": "cat.png", "height": 5})
    define(h, new)
    other.create("thumbnail", {"image": "cat.png", "height": 5})
    lives(h, "after", newest)
    define(h, newest)
    other.create("thumbnail", {"picture": "cat.png"})


def test_the_same_definition_again_changes_nothing(h: Harness) -> None:
    before = h(h.engine.get_job("thumbnail"))
    h.clock.advance(1_000)
    define(h, old)
    assert h(h.engine.get_job("thumbnail")) == before
    assert (before.rev, before.takes, before.schema) == (1, schema(old), fingerprint(old))
    define(h, new)
    after = h(h.engine.get_job("thumbnail"))
    assert (after.rev, after.takes) == (2, schema(new))
    assert h(h.engine.jobs())[0].takes is None


def test_only_the_newest_documents_of_a_job_are_kept_and_that_of_its_definer(h: Harness) -> None:
    documents = [schema(old) | {"title": f"version {number}"} for number in range(40)]
    for document in documents:
        h.clock.advance(1)
        h(h.engine.define("thumbnail", schema=document))
    h(h.engine.define("thumbnail", schema=documents[30]))
    h.clock.advance(1)
    h(h.engine.define("thumbnail", schema=schema(new)))
    h(h.engine.define("thumbnail", schema=documents[30]))
    fingerprints = [version.schema for document in documents if (version := h.engine.version_of(document)) is not None]
    kept = h(h.engine.records.jobs.documents([("thumbnail", one) for one in fingerprints]))
    assert h.engine.limits.versions == 16
    assert kept.keys() == set(fingerprints[24:])
    with pytest.raises(BadInput, match="'imag' is unknown"):
        h.create("thumbnail", {"imag": "cat.png"})


# Whatever makes runs


def test_of_many_runs_none_is_made_and_the_wrong_one_is_named(h: Harness) -> None:
    good, bad = NewRun("thumbnail", {"image": "cat.png"}), NewRun("thumbnail", {"imag": "cat.png"})
    with pytest.raises(BadInput, match=r"The payload of runs\[1\] does not fit the job 'thumbnail': 'imag' is unknown"):
        h(h.engine.create([good, bad, good]))
    assert runs(h) == 0


def test_of_a_group_no_run_is_made(h: Harness) -> None:
    good, bad = NewRun("thumbnail", {"image": "cat.png"}), NewRun("thumbnail", {"imag": "cat.png"})
    with pytest.raises(BadInput, match=r"members\[1\] does not fit"):
        h(h.engine.create_group(NewGroup((Member(good), Member(bad)))))
    with pytest.raises(BadInput, match="The payload of the callback does not fit"):
        h(h.engine.create_group(NewGroup((Member(good),), callback=bad)))
    assert runs(h) == 0
    h(h.engine.create_group(NewGroup((Member(good),), callback=good)))


def test_a_schedule_is_compared_when_it_is_stored_and_not_when_it_fires(h: Harness) -> None:
    with pytest.raises(BadInput, match="The schedule's payload does not fit the job 'thumbnail': 'imag' is unknown"):
        h(h.engine.schedule("nightly", "thumbnail", every="1h", payload={"imag": "cat.png"}))
    assert h(h.engine.schedules()) == []
    h(h.engine.schedule("nightly", "thumbnail", every="1h", payload={"image": "cat.png"}))
    with pytest.raises(BadInput, match="'image' is missing"):
        h(h.engine.set_schedule("nightly", payload={}))
    define(h, newest)
    h(h.engine.set_schedule("nightly", enabled=True))
    h(h.engine.schedule("nightly", "thumbnail", every="1h", payload={"image": "cat.png"}, jitter=1))
    h.clock.advance(3_600_000)
    assert h(h.engine.fire_all()) == 1
    h(h.engine.trigger("nightly"))
    assert runs(h) == 2
    h(h.engine.schedule("later", "ghost", every="1h", payload={"imag": "cat.png"}))


def test_a_patch_is_compared_too(h: Harness) -> None:
    run = h.create("thumbnail", {"image": "cat.png"})
    with pytest.raises(BadInput, match="'imag' is unknown; 'image' may be meant"):
        h(h.engine.patch(run, payload={"imag": "dog.png"}))
    define(h, newest)
    h(h.engine.patch(run, priority=5))
    assert (h.get(run).payload, h.get(run).priority) == ('{"image":"cat.png"}', 5)


def test_what_was_accepted_can_be_repeated_and_run_again(h: Harness) -> None:
    key = Key("once", "forever", on_duplicate="compare")
    run = h.create("thumbnail", {"image": "cat.png"}, key=key)
    group = NewGroup((Member(NewRun("thumbnail", {"image": "cat.png"})),), key=Key("group", "forever"))
    made = h(h.engine.create_group(group))
    define(h, newest)
    assert h.create("thumbnail", {"image": "cat.png"}, key=key) == run
    assert h(h.engine.create_group(group)).id == made.id
    with pytest.raises(BadInput):
        h.create("thumbnail", {"image": "cat.png"}, key=Key("twice"))
    for _ in range(2):
        h.succeed(h.claimed())
    assert h(h.engine.rerun(run)).created
    assert h(h.engine.rerun_group(made.id)).id != made.id


def test_a_key_that_is_free_again_does_not_let_a_misfit_in(h: Harness) -> None:
    run = h.create("thumbnail", {"image": "cat.png"}, key=Key("while unfinished"))
    define(h, newest)
    assert h.create("thumbnail", {"image": "cat.png"}, key=Key("while unfinished")) == run
    h.succeed(h.claimed())
    with pytest.raises(BadInput, match="'image' is unknown"):
        h.create("thumbnail", {"image": "cat.png"}, key=Key("while unfinished"))


def test_on_a_callers_connection_it_is_compared_as_well(h: Harness) -> None:
    with pytest.raises(BadInput, match="'imag' is unknown"):
        h(h.engine.on(h.store).create([NewRun("thumbnail", {"imag": "cat.png"})]))


# The library


def test_code_that_has_the_job_goes_by_its_own_signature(tmp_path: Path) -> None:
    app, other = App(tmp_path / "a.db"), App(tmp_path / "a.db")
    app.job(name="thumbnail")(old)
    job = other.job(name="thumbnail")(newest)
    job.enqueue("cat.png")
    app.jobs["thumbnail"].new("cat.png")
    run_sync(other.engine.define("thumbnail", schema=schema(newest)))
    app._defined.add("thumbnail")  # as a process whose definition was replaced by that of a newer one
    assert app.enqueue("thumbnail", {"image": "cat.png"}).created
    assert app.schedule("thumbnail", every="1h", payload={"image": "cat.png"}).payload == {"image": "cat.png"}
    app.close()
    other.close()


def test_a_job_that_another_program_has_is_compared(tmp_path: Path) -> None:
    theirs, ours = App(tmp_path / "a.db"), App(tmp_path / "a.db")
    theirs.job(name="thumbnail")(old).enqueue("cat.png")
    with pytest.raises(BadInput, match="'imag' is unknown; 'image' may be meant"):
        ours.enqueue("thumbnail", {"imag": "cat.png"})
    with pytest.raises(BadInput, match="'imag' is unknown; 'image' may be meant"):
        ours.schedule("thumbnail", every="1h", payload={"imag": "cat.png"})
    with pytest.raises(BadInput, match="'imag' is unknown"), ours.transaction():
        ours.enqueue("thumbnail", {"imag": "cat.png"})
    ours.enqueue("thumbnail", {"image": "cat.png"})
    assert len(ours.runs().runs) == 2
    theirs.close()
    ours.close()


# Through a hub


@dataclass
class Shop:
    """A hub whose clock can leap, and those who ask it."""

    served: ServedHub
    client: httpx.Client
    engine: Engine

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return self.client.request(method, f"/api/v1/{path}", json=body)

    def works(self, name: str, function: Callable[..., Any]) -> None:
        """What a worker says when it starts."""
        self.ask("PUT", "jobs/thumbnail", {"schema": schema(function)}).raise_for_status()
        told = {"worker": {"name": name, "jobs": ["thumbnail"]}, "about": {}, "schemas": {"thumbnail": fingerprint(function)}}
        self.ask("POST", "worker/register", told).raise_for_status()

    def token(self, name: str, *scopes: str) -> dict[str, str]:
        made = self.ask("POST", "tokens", {"name": name, "scopes": list(scopes)}).raise_for_status().json()
        return {"authorization": f"Bearer {made['secret']}"}

    @property
    def runs(self) -> int:
        return len(self.ask("GET", "runs").json()["runs"])


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    served = ServedHub(tmp_path / "hub.db", clock=LeapingClock())
    store = open_any(str(tmp_path / "hub.db"), served.clock, blocking=True)
    with httpx.Client(base_url=served.url, timeout=30) as client:
        yield Shop(served, client, Engine(store, served.clock))
    run_sync(store.close())
    served.stop()


WRONG = {"job": "thumbnail", "payload": {"imag": "cat.png"}}
RIGHT = {"job": "thumbnail", "payload": {"image": "cat.png"}}
SAYS = "The payload does not fit the job 'thumbnail': 'imag' is unknown; 'image' may be meant."


def test_over_http_a_wrong_member_is_a_bad_request_that_names_the_right_one(shop: Shop) -> None:
    shop.works("w1", old)
    answer = shop.ask("POST", "runs", WRONG)
    assert (answer.status_code, answer.json()["detail"]) == (400, SAYS)
    assert answer.json()["hint"] == "It takes image (a text). It may take width (an integer)."
    batch = shop.ask("POST", "runs/batch", {"runs": [RIGHT, WRONG, RIGHT]})
    assert (batch.status_code, "The payload of runs[1] does not fit" in batch.json()["detail"]) == (400, True)
    group = shop.ask("POST", "groups", {"members": [RIGHT], "callback": WRONG})
    assert (group.status_code, "The payload of the callback does not fit" in group.json()["detail"]) == (400, True)
    schedule = shop.ask("PUT", "schedules/nightly", WRONG | {"every": "1h"})
    assert (schedule.status_code, "'image' may be meant" in schedule.json()["detail"]) == (400, True)
    assert (shop.runs, shop.ask("GET", "schedules").json()["schedules"]) == (0, [])
    assert shop.ask("POST", "runs", RIGHT).status_code == 202


def test_over_http_old_code_counts_until_it_is_gone(shop: Shop) -> None:
    shop.works("before", old)
    shop.works("after", new)
    both = [{"job": "thumbnail", "payload": {"image": "cat.png", name: 5}} for name in ("width", "height")]
    assert [shop.ask("POST", "runs", body).status_code for body in both] == [202, 202]
    shop.served.clock.leap(SILENCE + 1_000)  # type: ignore[attr-defined]
    shop.works("after", new)
    assert [shop.ask("POST", "runs", body).status_code for body in both] == [400, 202]


def test_a_request_that_was_answered_once_is_answered_again(shop: Shop) -> None:
    shop.works("w1", old)
    key = {"idempotency-key": "first"}
    first = shop.client.post("/api/v1/runs", json=RIGHT, headers=key)
    shop.ask("PUT", "jobs/thumbnail", {"schema": schema(newest)})
    shop.served.clock.leap(SILENCE + 1_000)  # type: ignore[attr-defined]
    again = shop.client.post("/api/v1/runs", json=RIGHT, headers=key)
    assert (first.status_code, again.status_code, again.json()["id"]) == (202, 202, first.json()["id"])
    assert shop.ask("POST", "runs", RIGHT).status_code == 400


def test_a_definition_shows_what_it_takes(shop: Shop) -> None:
    shop.works("w1", old)
    assert shop.ask("GET", "jobs/thumbnail").json()["takes"] == schema(old)
    audited = len(shop.ask("GET", "audit").json()["entries"])
    rev = shop.ask("PUT", "jobs/thumbnail", {"schema": schema(old)}).json()["rev"]
    shop.works("w2", old)
    shop.works("w3", new)
    assert shop.ask("GET", "jobs/thumbnail").json()["rev"] == rev + 1
    assert len(shop.ask("GET", "audit").json()["entries"]) == audited  # to start a worker is no act


def test_the_client_and_an_app_over_a_hub_find_the_same(shop: Shop) -> None:
    with Client(shop.served.url) as client:
        client.define("thumbnail", schema=schema(old))
        assert client.get_job("thumbnail").takes == schema(old)
        with pytest.raises(BadInput, match="'image' may be meant"):
            client.create([NewRun("thumbnail", {"imag": "cat.png"})])
        with pytest.raises(BadInput, match="'image' may be meant"):
            client.create_group(NewGroup((Member(NewRun("thumbnail", {"imag": "cat.png"})),)))
        client.create([NewRun("thumbnail", {"imag": "cat.png"}, checked=True)])
        client.create_group(NewGroup((Member(NewRun("thumbnail", {"imag": "cat.png"}, checked=True)),)))
    with App(shop.served.url) as app:
        with pytest.raises(BadInput, match="'image' may be meant"):
            app.enqueue("thumbnail", {"imag": "cat.png"})
        app.job(name="thumbnail")(newest).enqueue("cat.png")
        assert shop.ask("GET", "jobs/thumbnail").json()["takes"] == schema(newest)


def test_a_worker_tells_what_its_code_takes(shop: Shop) -> None:
    app = App(shop.served.url)
    app.job(name="thumbnail")(old)
    app.work(burst=True)
    assert shop.ask("POST", "runs", WRONG).json()["detail"] == SAYS
    run = shop.ask("POST", "runs", RIGHT).json()["id"]
    app.work(burst=True)
    assert shop.ask("GET", f"runs/{run}").json()["state"] == State.SUCCEEDED
    app.close()


# Small tokens


def test_a_token_that_may_work_cannot_have_runs_of_others_refused(shop: Shop) -> None:
    run_sync(shop.engine.define("thumbnail", schema=schema(old)))
    admin, work, submit = shop.token("ops", "admin"), "", ""
    shop.client.headers = httpx.Headers(admin)
    work, submit = shop.token("robot", "work")["authorization"], shop.token("guest", "submit")["authorization"]
    nothing = {"type": "object", "additionalProperties": False}
    shop.client.headers = httpx.Headers({"authorization": work})
    mine = shop.ask("PUT", "jobs/mine", {"schema": nothing})
    assert (mine.status_code, mine.json()["owner"]) == (200, "robot")
    theirs = shop.ask("PUT", "jobs/thumbnail", {"schema": nothing})
    assert (theirs.status_code, theirs.json()["schema"]) == (200, fingerprint(old))
    forged = {"worker": {"name": "w1", "jobs": ["thumbnail"]}, "about": {}, "schemas": {"thumbnail": fingerprint(old)}}
    shop.ask("POST", "worker/register", forged).raise_for_status()
    shop.client.headers = httpx.Headers({"authorization": submit})
    assert shop.ask("POST", "runs", RIGHT).status_code == 202
    assert shop.ask("POST", "runs", WRONG).status_code == 400
    assert shop.ask("POST", "runs", {"job": "mine", "payload": {"a": 1}}).status_code == 400


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(depth):
        document = {"items": document}
    return document


LOOP = {"$ref": "#/$defs/a"}
BOMB = {"$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 9} for n in range(40)}, "anyOf": [{"$ref": "#/$defs/d0"}] * 9}


@pytest.mark.timeout(60)
def test_no_document_of_a_small_token_does_harm(shop: Shop) -> None:
    shop.client.headers = httpx.Headers(shop.token("ops", "admin"))
    small = shop.token("robot", "work", "submit")
    shop.client.headers = httpx.Headers(small)
    for kept in ({"$defs": {"a": LOOP}, **LOOP}, {"$defs": {"a": {"anyOf": [LOOP] * 50}}, **LOOP}, BOMB, nested(60), {"type": 5}, {}):
        assert shop.ask("PUT", "jobs/mine", {"schema": kept}).status_code == 200
        assert shop.ask("POST", "runs", {"job": "mine", "payload": {"a": [[1]]}}).status_code == 202
    bodies: list[Any] = [nested(70), {"enum": ["x" * 20_000]}, [], 5, "x", {"a": 2**70}, {"a\0": 1}]
    for bad in bodies:
        answer = shop.ask("PUT", "jobs/mine", {"schema": bad})
        assert answer.status_code in (400, 413), bad
    assert shop.ask("POST", "runs", {"job": "mine", "payload": {"a": 1}}).status_code == 202


def test_a_document_that_cannot_be_kept_changes_nothing(h: Harness) -> None:
    before = h(h.engine.get_job("thumbnail"))
    documents: list[Any] = [nested(70), [], 5, {"a": object()}, {"a": float("nan")}, {1: 2}]
    for bad in documents:
        with pytest.raises(BadInput):
            h(h.engine.define("thumbnail", schema=bad, options=Options(priority=5)))
    with pytest.raises(TooLarge):
        h(h.engine.define("thumbnail", schema={"enum": ["x" * 20_000]}))
    assert h(h.engine.get_job("thumbnail")) == before


# The command line


@pytest.mark.parametrize("where", ["store", "hub"])
def test_the_command_line_says_what_was_meant(
    where: str, shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shop.works("w1", old)
    target = ("--store", str(tmp_path / "hub.db")) if where == "store" else ("--hub", shop.served.url)
    assert cli.main(["enqueue", "thumbnail", "imag=x", *target]) == 2
    said = capsys.readouterr().err
    assert "'imag' is unknown; 'image' may be meant" in " ".join(said.split())
    assert "It takes image (a text)." in " ".join(said.split())
    assert cli.main(["schedules", "add", "nightly", "thumbnail", "--every", "1h", "--payload", '{"imag": "x"}', *target]) == 2
    assert "'imag' is unknown; 'image' may be meant" in " ".join(capsys.readouterr().err.split())
    assert shop.runs == 0
    assert cli.main(["enqueue", "thumbnail", "image=x", *target]) == 0
    capsys.readouterr()
    assert cli.main(["jobs", "show", "thumbnail", *target]) == 0
    assert "It takes image (a text). It may take width (an integer)." in " ".join(capsys.readouterr().out.split())
    assert cli.main(["jobs", "show", "thumbnail", "--json", *target]) == 0
    assert json.loads(capsys.readouterr().out)["takes"] == schema(old)
