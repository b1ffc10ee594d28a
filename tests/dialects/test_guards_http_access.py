"""Who may do what at the guards' door, and what hostile callers get there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.dialects.guards_door import KEY, STORY, UNKNOWN, GuardsDoor
from tests.harness import Harness
from windlass.clock import ManualClock
from windlass.dialects import settings_of
from windlass.dialects.guards import Settings, mount
from windlass.errors import BadInput, StoreUnreachable
from windlass.hub import HubSettings
from windlass.hub.auth import refuse_dialect
from windlass.model import SCOPES
from windlass.testing.dialects import HOSTILE_BODIES

WORKERS = ("work", "admin")
ROUTES: dict[str, tuple[str, str, Any, Any]] = {
    "create": ("POST", "/jobs", {"type": STORY}, "submit"),
    "list": ("GET", "/jobs", None, "read"),
    "get": ("GET", "/jobs/{job}", None, "read"),
    "update": ("PATCH", "/jobs/{job}", {"priority": 5}, "submit"),
    "delete": ("DELETE", "/jobs/{job}", None, "submit"),
    "run of": ("GET", "/jobs/{job}/runs", None, "read"),
    "webhooks of": ("GET", "/jobs/{job}/webhooks", None, "read"),
    "create of template": ("POST", "/api/jobs", {"template_id": STORY}, "submit"),
    "queue": ("GET", "/api/jobs", None, "read"),
    "cancel": ("POST", "/api/jobs/{job}/cancel", None, "submit"),
    "create template": ("POST", "/api/job-templates", {"name": "{new}"}, WORKERS),
    "templates": ("GET", "/api/job-templates", None, "read"),
    "template": ("GET", "/api/job-templates/story", None, "read"),
    "update template": ("PATCH", "/api/job-templates/{new}", {"default_params": {"n": 1}}, WORKERS),
    "create schedule": ("POST", "/api/schedules", {"template_id": STORY, "cron": "0 0 * * *"}, "admin"),
    "schedules": ("GET", "/api/schedules", None, "read"),
    "schedule": ("GET", "/api/schedules/{schedule}", None, "read"),
    "update schedule": ("PATCH", "/api/schedules/{schedule}", {"enabled": False}, "admin"),
    "delete schedule": ("DELETE", "/api/schedules/{schedule}", None, "admin"),
    "create group": ("POST", "/api/job-groups", {"jobs": [{"template_id": STORY}]}, "submit"),
    "groups": ("GET", "/api/job-groups", None, "read"),
    "group": ("GET", "/api/job-groups/{group}", None, "read"),
    "cancel group": ("POST", "/api/job-groups/{group}/cancel", None, "submit"),
    "runs": ("GET", "/api/job-runs", None, "read"),
    "run": ("GET", "/api/job-runs/{failed}", None, "read"),
    "retry": ("POST", "/api/job-runs/{failed}/retry", None, "submit"),
    "start": ("POST", "/scheduler/start", {"run_recovery": False}, "admin"),
    "stop": ("POST", "/scheduler/stop", None, "admin"),
    "status": ("GET", "/scheduler/status", None, "read"),
    "story": ("POST", "/story/generate", {}, "submit"),
    "research": ("POST", "/research/run", {}, "submit"),
    "trigger": ("POST", "/jobs/story/trigger", {}, "submit"),
    "trigger batch": ("POST", "/jobs/batch/trigger", {"jobs": [{"type": STORY}]}, "submit"),
    "batch": ("GET", "/jobs/batch/{group}", None, "read"),
    "old cancel": ("POST", "/jobs/{job}/cancel", None, "submit"),
    "monitor": ("POST", "/jobs/monitor", None, "read"),
    "monitor one": ("POST", "/jobs/{job}/monitor", None, "read"),
    "dedup": ("POST", "/jobs/{job}/dedup_check", None, "read"),
    "health": ("GET", "/health", None, None),
}


@pytest.fixture
def guards(h: Harness) -> Iterator[GuardsDoor]:
    door = GuardsDoor(h)
    yield door
    door.close()


def statuses(guards: GuardsDoor, headers: dict[str, str], new: str = "new") -> dict[str, int]:
    """The status that a caller with these headers gets of each route, each on records of its own."""
    answers: dict[str, int] = {}
    for name, (method, path, body, _) in ROUTES.items():
        guards.headers = {"x-api-key": KEY}
        group = guards.done("POST", "/api/job-groups", {"jobs": [{"template_id": STORY}]}, 201)["group_id"]
        words = {
            "group": group,
            "job": guards.create(),
            "failed": failed(guards),
            "schedule": schedule(guards),
            "new": f"{new}-{len(answers)}",
        }
        if name == "update template":  # whoever may create one may change it
            guards.headers = headers
            guards.post("/api/job-templates", {"name": words["new"]})
        guards.headers = headers
        data = {"name": words["new"]} if name == "create template" else body
        answers[name] = guards(method, path.format(**words), data).status
        guards.h(guards.h.engine.resume("queue", "guards"))
    return answers


def failed(guards: GuardsDoor) -> str:
    """A run that has failed for good."""
    guards.create("once", priority=100)
    return guards.fail()


def schedule(guards: GuardsDoor) -> str:
    return str(guards.done("POST", "/api/schedules", {"template_id": STORY, "cron": "0 0 * * *"}, 201)["schedule_id"])


def admitted(scopes: set[str]) -> set[str]:
    """The routes that these scopes admit to."""

    def admits(scope: Any) -> bool:
        return scope is None or bool(scopes & ({scope} if isinstance(scope, str) else set(scope)))

    return {name for name, (_, _, _, scope) in ROUTES.items() if admits(scope)}


@pytest.fixture
def prepared(guards: GuardsDoor) -> GuardsDoor:
    guards.template("once", retry_policy={"max_attempts": 0})
    return guards


def test_every_route_of_the_table_is_in_this_matrix(guards: GuardsDoor) -> None:
    paths = {(method, path) for method, path, _, _ in ROUTES.values()}
    rows = {(verb.method, verb.path): verb.scope for verb in guards.dialect.verbs}
    template = {(method, path.replace("story", "{type}")) for method, path in paths}
    shapes = {(method, shape(path)) for method, path in paths | template}
    assert {(method, shape(path)) for method, path in rows} <= shapes
    assert len(rows) == len(ROUTES)


def shape(path: str) -> str:
    return "/".join("*" if part.startswith("{") else part for part in path.split("/"))


@pytest.mark.parametrize("scope", SCOPES)
def test_every_route_asks_tokens_of_windlass_for_its_scope(prepared: GuardsDoor, scope: str) -> None:
    _, secret = prepared.h(prepared.h.engine.create_token("small", (scope,)))
    answers = statuses(prepared, {"authorization": f"Bearer {secret}"})
    assert {name for name, status in answers.items() if status not in (401, 403)} == admitted(set(SCOPES) if scope == "admin" else {scope})
    assert {status for status in answers.values() if status >= 400} <= {403, 503}  # 503: direct calls, without an app
    assert {name for name, status in answers.items() if status == 503} <= {"story", "research"}


def test_the_key_opens_every_route(prepared: GuardsDoor) -> None:
    answers = statuses(prepared, {"x-api-key": KEY})
    assert {name: status for name, status in answers.items() if status >= 300} == {"story": 503, "research": 503}


@pytest.mark.parametrize(
    "headers", [{}, {"x-api-key": ""}, {"x-api-key": "wrong"}, {"x-api-key": KEY[:-1]}, {"authorization": f"Bearer {KEY}"}]
)
def test_nothing_else_opens_any(prepared: GuardsDoor, headers: dict[str, str]) -> None:
    prepared.headers = headers
    prepared.hub.authenticator.failures.limit = 10_000
    for method, path, body, scope in ROUTES.values():
        answer = prepared(method, path.format(job=UNKNOWN, group=UNKNOWN, failed=UNKNOWN, schedule=UNKNOWN, new="new"), body)
        assert answer.status == (200 if scope is None else 401)
        if scope is not None:
            assert (answer.headers["www-authenticate"], answer.json.keys()) == ("ApiKey", {"detail"})


def test_a_wrong_key_is_refused_even_beside_a_token_and_counted(guards: GuardsDoor) -> None:
    _, secret = guards.h(guards.h.engine.create_token("ops", ("admin",)))
    guards.headers = {"authorization": f"Bearer {secret}"}
    assert guards.get("/jobs").status == 200
    wrong = [guards.get("/jobs", {"x-api-key": "wrong"}).status for _ in range(31)]
    assert wrong == [401] * 30 + [429]


def test_the_key_opens_nothing_else_of_the_hub(guards: GuardsDoor) -> None:
    guards.h(guards.h.engine.create_token("first", ("admin",)))
    assert guards.get("/api/v1/jobs").status == 401


def test_whoever_has_the_key_is_named_in_the_audit(guards: GuardsDoor) -> None:
    job = guards.create()
    guards.done("DELETE", f"/jobs/{job}")
    last, *_ = guards.h(guards.h.engine.audit()).entries
    assert (last.actor, last.what, last.subject) == ("guards", "cancel", f"job {job}")


def test_without_its_setting_the_key_is_not_asked_for_where_the_hub_is_open(h: Harness) -> None:
    door = GuardsDoor(h, api_auth_enabled=False)
    door.headers = {"x-api-key": "anything"}
    assert door.get("/jobs").status == 200
    h(h.engine.create_token("first", ("admin",)))
    door.hub.forget_tokens()
    assert door.get("/jobs").status == 401
    door.close()


# Settings


def test_the_variables_of_the_document_set_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of("guards", {}, {"API_AUTH_ENABLED": "true", "API_KEY": KEY})
    assert (settings.api_auth_enabled, settings.api_key) == (True, KEY)
    for text in ("false", "0", ""):
        dialect = mount(settings_of("guards", {}, {"API_AUTH_ENABLED": text, "API_KEY": KEY}), ManualClock())
        assert not dialect.guarded
    assert settings_of("guards", {"api_key": "mine"}, {"API_AUTH_ENABLED": "1", "API_KEY": KEY}).api_key == "mine"


@pytest.mark.parametrize(
    ("table", "variables"),
    [
        ({"api_auth_enabled": True}, {}), ({}, {"API_AUTH_ENABLED": "true"}), ({}, {"API_AUTH_ENABLED": "maybe", "API_KEY": KEY}),
        ({"api_auth_enabled": True, "api_key": "  "}, {}), ({"direct": {"story": "story"}}, {}), ({"direct": {"/jobs": "story"}}, {}),
        ({"direct": {"/api/story": "story"}}, {}), ({"direct": {"/a/{id}": "story"}}, {}), ({"direct": {"/a": ""}}, {}),
        ({"sunset": "soon"}, {}), ({"autostart": "yes"}, {}), ({"unknown": 1}, {}),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_refused(table: dict[str, Any], variables: dict[str, str]) -> None:
    with pytest.raises(BadInput, match=r"\[dialects\.guards\] cannot be read|must be a text of"):
        settings_of("guards", table, variables)


def test_a_hub_that_is_not_open_needs_the_key_or_is_refused() -> None:
    public = HubSettings(open=True, host="0.0.0.0")
    with pytest.raises(BadInput, match="API_AUTH_ENABLED=true and API_KEY"):
        refuse_dialect(mount(Settings(), ManualClock()), public, any_token=True)
    refuse_dialect(mount(Settings(api_auth_enabled=True, api_key=KEY), ManualClock()), public, any_token=True)
    refuse_dialect(mount(Settings(), ManualClock()), HubSettings(open=True), any_token=False)


# Hostile requests


def test_hostile_bodies_are_refused_in_the_form_of_all_refusals_and_change_nothing(guards: GuardsDoor) -> None:
    job = guards.create()
    before = everything(guards)
    creations = ("/jobs", "/api/jobs", "/api/job-templates", "/api/schedules", "/api/job-groups", "/jobs/batch/trigger")
    changes = (f"/jobs/{job}", f"/api/job-templates/{STORY}")
    for method, path in [*(("POST", path) for path in creations), *(("PATCH", path) for path in changes)]:
        for body in HOSTILE_BODIES:
            assert guards.refused(method, path, raw=body)[0] in (400, 413, 422), (path, body[:80])
    assert everything(guards) == before


def everything(guards: GuardsDoor) -> list[Any]:
    """All that there is."""
    return [guards.done("GET", path) for path in ("/jobs?limit=200", "/api/job-templates", "/api/schedules", "/api/job-groups")]


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"type": STORY, "params": {"n": 10**30}}, "params"), ({"type": STORY, "params": {"deep": [[[[1]]]] * 3}}, None),
        ({"type": STORY, "params": {"x": "y" * 2_000_000}}, "params"), ({"type": "x" * 129}, "type"),
        ({"type": STORY, "webhook_url": "ftp://a.example/"}, "webhook_url"), ({"type": STORY, "webhook_url": ""}, "webhook_url"),
        ({"type": STORY, "webhook_url": "https://user:pass@a.example/"}, "webhook_url"),
    ],
)  # fmt: skip
def test_a_creation_that_is_too_much_is_refused_by_its_member(guards: GuardsDoor, body: dict[str, Any], loc: str | None) -> None:
    if loc is None:
        guards.done("POST", "/jobs", body, 201)
        return
    status, where = guards.refused("POST", "/jobs", body)
    assert (status, [name[0] for name in where]) == (422, ["body"])
    assert where[0][1:] in ((loc,), ())
    assert guards.done("GET", "/jobs")["total"] == 0


def test_a_store_that_fails_is_not_shown_to_callers(guards: GuardsDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise StoreUnreachable("postgresql://ops:secret@db is gone.", hint="Look there.")

    monkeypatch.setattr(guards.h.store, "batch", fails)
    status, detail = guards.refused("GET", "/jobs")
    assert (status, "secret" in detail) == (503, False)


def test_an_error_of_the_server_itself_is_not_shown_to_callers(guards: GuardsDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("/etc/secret")

    monkeypatch.setattr(guards.h.store, "batch", breaks)
    assert guards.refused("GET", "/jobs") == (500, "Internal Server Error")
