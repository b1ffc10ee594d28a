"""On whose behalf a token asks: what small tokens can neither take from others, nor bring in, nor get to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.served import LeapingClock, ServedHub
from tests.tiers import long
from windlass import App
from windlass.config.opening import open_store
from windlass.engine import Engine
from windlass.hub import HubSettings
from windlass.model import Key, NewRun
from windlass.store.base import run_sync

HOUR = 3_600_000
PROGRAM = {"url": "https://files.example.com/solve", "checksum": "a" * 64}
EVERY = {"job": "mail", "every": "1h", "by_code": True}


class Person:
    """Somebody with a token."""

    def __init__(self, url: str, secret: str) -> None:
        self.secret = secret
        self._http = httpx.Client(base_url=url + "api/v1", timeout=30, headers={"Authorization": f"Bearer {secret}"})

    def ask(self, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self._http.request(method, path, json=body, headers=names)
        assert answer.status_code == status, answer.text
        return answer.json()

    def refused(self, method: str, path: str, body: Any = None) -> str:
        problem = self.ask(method, path, body, 403)
        assert problem["code"] == "forbidden", problem
        assert problem["hint"]
        return str(problem["detail"])

    def close(self) -> None:
        self._http.close()


class Place:
    """A hub with an admin, and others as they are needed."""

    def __init__(self, store: str) -> None:
        self.store, self.clock = store, LeapingClock()
        self.served = ServedHub(store, HubSettings(), self.clock)
        self._people: list[Person] = []
        made = httpx.post(f"{self.served.url}api/v1/tokens", json={"name": "ops", "scopes": ["admin"]})
        self.admin = self.known_by(made.json()["secret"])
        self.admin.ask("PUT", "/jobs/mail", {"payload": {"sender": "ops"}})

    def somebody(self, name: str, *scopes: str, **how: Any) -> Person:
        return self.known_by(self.admin.ask("POST", "/tokens", {"name": name, "scopes": scopes, **how}, 201)["secret"])

    def known_by(self, secret: str) -> Person:
        self._people.append(Person(self.served.url, secret))
        return self._people[-1]

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """A program that works on the store itself."""
        opened = open_store(self.store, self.clock, blocking=True)
        try:
            yield Engine(opened, self.clock)
        finally:
            run_sync(opened.close())

    def close(self) -> None:
        for person in self._people:
            person.close()
        self.served.stop()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(str(tmp_path / "hub.db") if request.param == "sqlite" else request.getfixturevalue("emptied_postgres"))
    yield made
    made.close()


# Programs


_OPTIONS = {"options": {"solver": PROGRAM}}
WITH_PROGRAM: list[tuple[str, str, Any]] = [
    ("PUT", "/jobs/new", _OPTIONS),
    ("PUT", "/schedules/new", EVERY | _OPTIONS),
    ("POST", "/runs", {"job": "mail"} | _OPTIONS),
    ("POST", "/runs", {"job": "mail", "options": {"solver": {"url": PROGRAM["url"]}}}),
    ("POST", "/runs/batch", {"runs": [{"job": "mail"}, {"job": "mail"} | _OPTIONS]}),
    ("POST", "/groups", {"members": [{"job": "mail"} | _OPTIONS]}),
    ("POST", "/groups", {"members": [{"job": "mail"}], "callback": {"job": "mail"} | _OPTIONS}),
]


def test_only_an_admin_names_a_program_wherever_options_can_stand(place: Place) -> None:
    small = place.somebody("small", "work", "submit")
    for asked in WITH_PROGRAM:
        assert "admin" in small.refused(*asked)
    assert place.admin.ask("GET", "/runs")["runs"] == []
    assert place.admin.ask("GET", "/schedules")["schedules"] == []
    assert [job["name"] for job in place.admin.ask("GET", "/jobs")["jobs"]] == ["mail"]
    for method, path, body in WITH_PROGRAM:
        place.admin.ask(method, path, body, 202 if method == "POST" else 200)


def test_runs_of_a_program_that_an_admin_named_are_for_everybody(place: Place) -> None:
    place.admin.ask("PUT", "/jobs/solve", {"options": {"solver": PROGRAM}})
    place.admin.ask("PUT", "/schedules/solving", {"job": "mail", "every": "1h", "options": {"solver": PROGRAM}})
    shop = place.somebody("shop", "submit")
    shop.ask("POST", "/runs", {"job": "solve"}, 202)
    shop.ask("POST", "/schedules/solving/trigger", None, 202)


# What code defines


def test_code_defines_what_is_new_and_what_its_own_principal_has_defined(place: Place) -> None:
    old = place.somebody("fleet", "work")
    old.ask("PUT", "/jobs/report", {"options": {"priority": 1}})
    old.ask("PUT", "/jobs/report", {"options": {"priority": 2}})
    one = place.somebody("worker-7", "work", worker="worker-7", principal="fleet")
    job = one.ask("PUT", "/jobs/report", {"options": {"priority": 3}})
    assert (job["owner"], job["rev"]) == ("fleet", 3)
    stranger = place.somebody("worker-8", "work", worker="worker-8")
    assert "'fleet'" in stranger.refused("PUT", "/jobs/report", {"handler": "mine"})
    stranger.ask("PUT", "/jobs/report", {"options": {"priority": 3}})  # the same again changes nothing
    assert place.admin.ask("GET", "/jobs/report")["rev"] == 3


def test_rotation_keeps_the_principal(place: Place) -> None:
    made = place.admin.ask("POST", "/tokens", {"name": "worker-7", "scopes": ["work"], "principal": "fleet"}, 201)
    rotated = place.admin.ask("POST", f"/tokens/{made['token']['id']}/rotate", {}, 201)
    assert (made["token"]["principal"], rotated["token"]["principal"]) == ("fleet", "fleet")
    for priority, token in enumerate((made, rotated)):
        place.known_by(token["secret"]).ask("PUT", "/jobs/report", {"options": {"priority": priority}})


def test_a_worker_cannot_redefine_what_people_and_programs_on_the_store_have_defined(place: Place) -> None:
    worker = place.somebody("w", "work")
    assert "person" in worker.refused("PUT", "/jobs/mail", {"handler": "evil"})
    with place.engine() as engine:
        run_sync(engine.define("local"))
    assert "person" in worker.refused("PUT", "/jobs/local", {"handler": "evil"})
    assert place.admin.ask("GET", "/jobs/mail")["handler"] == "mail"


def test_what_a_person_changes_of_a_job_is_theirs_from_then_on(place: Place) -> None:
    worker = place.somebody("fleet", "work")
    worker.ask("PUT", "/jobs/report", {"options": {"priority": 1}})
    assert place.admin.ask("PUT", "/jobs/report", {"options": {"priority": 9}})["owner"] is None
    worker.refused("PUT", "/jobs/report", {"options": {"priority": 1}})
    assert place.admin.ask("GET", "/jobs/report")["options"] == {"priority": 9}


def test_a_program_on_the_store_leaves_a_job_to_the_fleet_that_defined_it(place: Place) -> None:
    worker = place.somebody("fleet", "work")
    worker.ask("PUT", "/jobs/report", {})
    with place.engine() as engine:
        run_sync(engine.define("report", payload={"n": 1}))
    assert worker.ask("PUT", "/jobs/report", {"options": {"priority": 1}})["owner"] == "fleet"


def test_a_job_that_runs_wait_for_belongs_to_the_first_that_defines_it(place: Place) -> None:
    place.somebody("shop", "submit").ask("POST", "/runs", {"job": "later", "undefined": "wait"}, 202)
    assert place.somebody("fleet", "work").ask("PUT", "/jobs/later", {})["owner"] == "fleet"
    place.somebody("other", "work").refused("PUT", "/jobs/later", {"handler": "evil"})


def test_code_stores_schedules_that_are_new_or_its_own(place: Place) -> None:
    place.admin.ask("PUT", "/schedules/nightly", {"job": "mail", "cron": "0 3 * * *"})
    worker = place.somebody("fleet", "work", worker="w")
    worker.refused("PUT", "/schedules/nightly", {**EVERY, "enabled": False})
    worker.refused("PUT", "/schedules/other", {"job": "mail", "every": "1h"})  # as a person would
    assert worker.ask("PUT", "/schedules/hourly", EVERY)["owner"] == "fleet"
    assert worker.ask("PUT", "/schedules/hourly", {**EVERY, "every": "2h"})["expr"] == "2h"
    place.somebody("stranger", "work").refused("PUT", "/schedules/hourly", {**EVERY, "every": "3h"})
    nightly, hourly = (place.admin.ask("GET", f"/schedules/{key}") for key in ("nightly", "hourly"))
    assert (nightly["enabled"], nightly["expr"], hourly["expr"]) == (True, "0 3 * * *", "2h")


def test_what_a_person_has_edited_of_a_schedule_stands_against_code(place: Place) -> None:
    worker = place.somebody("fleet", "work")
    worker.ask("PUT", "/schedules/hourly", EVERY)
    place.admin.ask("PATCH", "/schedules/hourly", {"enabled": False})
    assert worker.ask("PUT", "/schedules/hourly", {**EVERY, "every": "1m"})["enabled"] is False
    found = place.admin.ask("GET", "/schedules/hourly")
    assert (found["enabled"], found["expr"], found["edited"]) == (False, "1h", True)


def test_a_worker_whose_definition_is_refused_says_so_and_works(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    worker, shop = place.somebody("fleet", "work"), place.somebody("shop", "read", "submit")
    run = shop.ask("POST", "/runs", {"job": "mail", "payload": {"to": "ann"}}, 202)["id"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINDLASS_HUB_TOKEN", worker.secret)
        app = App(place.served.url)

        @app.job(priority=7)
        def mail(to: str, sender: str) -> str:
            return f"{to} by {sender}"

        @app.cron("0 3 * * *", key="nightly")
        @app.job()
        def sweep() -> None: ...

        place.admin.ask("PUT", "/schedules/nightly", {"job": "mail", "cron": "0 4 * * *"})
        app.work(burst=True, name="w")
        app.close()
    assert "Job 'mail' keeps another definition than the code's" in caplog.text
    assert "Schedule 'nightly' keeps another definition than the code's" in caplog.text
    assert shop.ask("GET", f"/runs/{run}")["output"] == "ann by ops"


# Keys


def test_keys_of_one_principal_are_nothing_to_another(place: Place) -> None:
    one, other = (place.somebody(name, "submit") for name in ("shop", "rival"))
    asked = {"job": "mail", "key": {"name": "invoice-7", "on_duplicate": "compare"}}
    first = one.ask("POST", "/runs", {**asked, "payload": {"to": "ann"}}, 202)
    foreign = other.ask("POST", "/runs", {**asked, "payload": {"to": "bob"}}, 202)
    assert (first["created"], foreign["created"]) == (True, True)
    again = one.ask("POST", "/runs", {**asked, "payload": {"to": "ann"}}, 202)
    assert (again["id"], again["created"]) == (first["id"], False)


def test_tokens_of_one_principal_share_their_keys(place: Place) -> None:
    one, other = (place.somebody(name, "submit", principal="shop") for name in ("web-1", "web-2"))
    for asked, headers in (({"job": "mail", "key": {"name": "k"}}, {}), ({"job": "mail"}, {"Idempotency_Key": "k"})):
        first, again = (person.ask("POST", "/runs", asked, 202, **headers) for person in (one, other))
        assert (again["id"], again["created"]) == (first["id"], False)


def test_the_scopes_of_others_cannot_be_chosen(place: Place) -> None:
    victim, thief = place.somebody("victim", "submit"), place.somebody("thief", "submit")
    for scope in ("http:victim", "by:victim:key", "schedule"):
        asked = {"job": "mail", "key": {"name": "k", "ttl": "forever", "scope": scope}}
        assert thief.ask("POST", "/runs", asked, 202)["created"]
        assert place.admin.ask("POST", "/runs", asked, 400)["code"] == "bad_input"
    assert victim.ask("POST", "/runs", {"job": "mail"}, 202, Idempotency_Key="k")["created"]
    assert victim.ask("POST", "/runs", {"job": "mail", "key": {"name": "k"}}, 202)["created"]


def test_names_that_are_long_share_no_scope(place: Place) -> None:
    one, other = (place.somebody("x" * 127 + end, "submit") for end in "ab")
    for asked, headers in (({"job": "mail", "key": {"name": "k"}}, {}), ({"job": "mail"}, {"Idempotency_Key": "k"})):
        assert all(person.ask("POST", "/runs", asked, 202, **headers)["created"] for person in (one, other))


def test_an_admin_and_a_program_on_the_store_share_their_keys(place: Place) -> None:
    made = place.admin.ask("POST", "/runs", {"job": "mail", "key": {"name": "k"}}, 202)
    with place.engine() as engine:
        (created,) = run_sync(engine.create([NewRun("mail", key=Key("k"))]))
    assert (created.id, created.created) == (made["id"], False)


def test_a_duplicate_shows_its_run_only_to_those_who_may_read(place: Place) -> None:
    blind, seeing = place.somebody("web-1", "submit", principal="shop"), place.somebody("web-2", "submit", "read", principal="shop")
    asked = {"job": "mail", "payload": {"secret": 1}, "key": {"name": "k"}}
    first = seeing.ask("POST", "/runs", asked, 202)
    again = blind.ask("POST", "/runs", {**asked, "payload": None}, 202)
    assert (again["id"], again["created"], again["run"]) == (first["id"], False, None)
    assert seeing.ask("POST", "/runs", asked, 202)["run"]["payload"] == {"sender": "ops", "secret": 1}


def test_a_fire_whose_key_something_else_holds_is_a_recorded_skip(place: Place) -> None:
    with place.engine() as engine:
        schedule = run_sync(engine.schedule("hourly", "mail", every="1h"))
        assert schedule.next_at is not None
        taken = [NewRun("mail", key=Key(f"{schedule.id}@{schedule.next_at + n * HOUR}", scope="schedule")) for n in range(3)]
        run_sync(engine.create(taken))
        for _ in range(3):
            place.clock.leap(HOUR)
            run_sync(engine.fire_all())
        found, skips = run_sync(engine.get_schedule("hourly")), run_sync(engine.skips("hourly"))
        assert (found.fired, found.skipped, {skip.reason for skip in skips}) == (0, 3, {"duplicate_key"})
        findings = [finding for finding in run_sync(engine.doctor()) if finding.code == "schedule_skips"]
        assert ["scope 'schedule'" in finding.todo for finding in findings] == [True]
        place.clock.leap(HOUR)
        assert run_sync(engine.fire_all()) == 1


# Capacities and results


USUAL_AND_LESS: list[tuple[Any, Any]] = [
    ({"uses": [{"resource": "gpu"}]}, {"uses": []}),
    ({"uses": [{"resource": "gpu", "weight": 2}]}, {"uses": [{"resource": "gpu", "weight": 1}]}),
    ({"uses": [{"resource": "gpu", "per": "user"}]}, {"uses": [{"resource": "gpu"}]}),
    ({"requires": {"tags": ["trusted"]}}, {"requires": {"tags": []}}),
    ({"requires": {"cores": 4, "memory": 100}}, {"requires": {"cores": 1, "memory": 100}}),
]


def test_a_submitter_cannot_let_a_run_go_without_what_its_job_uses(place: Place) -> None:
    shop = place.somebody("shop", "submit")
    for usual, less in USUAL_AND_LESS:
        place.admin.ask("PUT", "/jobs/heavy", {"options": usual})
        asked = {"job": "heavy", "options": less, "payload": {"user": "ann"}}
        assert "'heavy'" in shop.refused("POST", "/runs", asked)
        assert "'heavy'" in shop.refused("POST", "/groups", {"members": [asked]})
        shop.ask("POST", "/runs", {**asked, "options": {**usual, "priority": 1}}, 202)
        place.admin.ask("POST", "/runs", asked, 202)


def test_a_submitter_cannot_keep_a_run_for_longer_than_its_job_says(place: Place) -> None:
    shop = place.somebody("shop", "submit")
    place.admin.ask("PUT", "/jobs/short", {"options": {"keep": HOUR}})
    for job, longer in (("mail", "forever"), ("short", 2 * HOUR)):
        assert "longer" in shop.refused("POST", "/runs", {"job": job, "options": {"keep": longer}})
        shop.ask("POST", "/runs", {"job": job, "options": {"keep": HOUR}}, 202)
        place.admin.ask("POST", "/runs", {"job": job, "options": {"keep": longer}}, 202)


def test_a_worker_reads_results_and_steps_only_for_the_run_that_it_has(place: Place) -> None:
    before = place.admin.ask("POST", "/runs", {"job": "mail"}, 202)["id"]
    after = place.admin.ask("POST", "/runs", {"job": "mail", "after": [before]}, 202)["id"]
    mine, foreign = (place.somebody(name, "work", worker=name) for name in ("mine", "foreign"))

    def claim(name: str, person: Person) -> Any:
        asked = {"worker": {"name": name, "slots": 1}, "count": 1, "lease": 60_000}
        return person.ask("POST", "/worker/claim", asked)["runs"][0]

    run = claim("foreign", foreign)
    done = {"run": run["id"], "token": run["token"], "kind": "succeed", "output": '"secret"'}
    foreign.ask("POST", "/worker/report", {"outcomes": [done]})
    mine.refused("GET", f"/runs/{after}/results")  # nobody has it yet
    mine.refused("GET", f"/runs/{after}/steps")
    held = claim("mine", mine)
    assert held["id"] == after
    mine.ask("POST", "/worker/step", {"run": after, "token": held["token"], "key": "charge", "output": '"secret"'})
    assert [step["output"] for step in mine.ask("GET", f"/runs/{after}/steps")["steps"]] == ["secret"]
    for what in ("results", "steps"):
        foreign.refused("GET", f"/runs/{after}/{what}")
    assert [result["output"] for result in mine.ask("GET", f"/runs/{after}/results")["results"]] == ["secret"]
