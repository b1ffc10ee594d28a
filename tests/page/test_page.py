"""The page in a real browser, on a real hub: what an operator sees and does, and that nothing anybody wrote is ever more than text."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.harness import token
from tests.page.browsers import PATIENCE, Watched, chromium
from tests.served import LeapingClock, ServedHub
from tests.tiers import corners, long
from tests.workers import Gate, ended, until, working
from windlass import App, Context, Handle, State
from windlass.machine import Fail, Succeed
from windlass.model import Failure, Member, NewGroup, NewRun, Options, Requires, Run, WorkerInfo
from windlass.store.base import run_sync
from windlass.store.records import Held

FILES = Path(__file__).parents[2] / "src" / "windlass" / "page"
HOSTILE = (Path(__file__).parent / "hostile.txt").read_text(encoding="utf-8").splitlines()

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(str(tmp_path / "windlass.db")) as app:
        yield app


@contextmanager
def served(folder: Path, mounted: str = "") -> Iterator[ServedHub]:
    hub = ServedHub(folder / "windlass.db", mounted=mounted)
    yield hub
    hub.stop()


@pytest.fixture
def hub(app: App, tmp_path: Path) -> Iterator[ServedHub]:
    with served(tmp_path) as hub:
        yield hub


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    """A page that must end without an error of its own and without having broken the policy."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, timezone_id="UTC")
    watched = Watched(context)
    yield watched
    watched.check()
    context.close()


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.page


def row(page: Page, run: Handle[Any] | str) -> Locator:
    return page.locator(f'tr[data-id="{run if isinstance(run, str) else run.id}"]')


def state(where: Page | Locator, name: str) -> None:
    """Wait until the state is told there."""
    expect(where.locator("h1 .pill, td.state .pill").first).to_have_text(name)


def listed(page: Page) -> list[str]:
    ids: list[str] = page.locator("tr[data-id]").evaluate_all("rows => rows.map((row) => row.dataset.id)")
    return ids


def shows(page: Page, ids: list[str]) -> None:
    """Wait until these runs are in the list, in this order."""
    until(lambda: listed(page) == ids)


def live(page: Page, words: str = "live") -> None:
    expect(page.locator(".connection")).to_have_text(words)


def load(page: Page, address: str) -> None:
    """Open an address anew. A change of what stands behind the # alone leaves the former view standing for a moment."""
    page.goto("about:blank")
    page.goto(address)


# Looking


def test_a_run_is_watched_from_the_queue_to_its_end_without_a_reload(app: App, hub: ServedHub, page: Page) -> None:
    gate = Gate()

    @app.job(name="report")
    def report(ctx: Context, month: str) -> dict[str, int]:
        ctx.progress(0.5, "page 12 of 24")
        gate.block()
        return {"pages": 24}

    page.goto(hub.url)
    expect(page.get_by_text("There are no runs yet.")).to_be_visible()
    live(page)
    page.evaluate("window.same = true")
    run = report.enqueue("may")
    state(row(page, run), "queued")
    with working(app):
        state(row(page, run), "running")
        expect(row(page, run).locator("progress")).to_have_attribute("value", "0.5")
        expect(row(page, run)).to_contain_text("page 12 of 24")
        row(page, run).locator("a").click()
        state(page, "running")
        expect(page.locator(".far")).to_contain_text("50 %")
        gate.open()
        state(page, "succeeded")
        expect(page.locator("pre.json").last).to_have_text('{\n  "pages": 24\n}')
        live(page, "ended")
        expect(page.locator(".timeline li .move")).to_have_text(["create", "claim", "start", "succeed"])
        page.go_back()
        state(row(page, run), "succeeded")
    assert page.evaluate("window.same")


def test_the_list_tells_of_new_runs_and_counts_them(app: App, hub: ServedHub, page: Page) -> None:
    @app.job(name="mail", max_attempts=1)
    def mail(to: str) -> None:
        raise ValueError(f"{to} is no address")

    page.goto(hub.url)
    live(page)
    with working(app):
        runs = [mail.enqueue(str(n)) for n in range(3)]
        for run in runs:
            state(row(page, run), "failed")
    shows(page, [run.id for run in reversed(runs)])
    expect(row(page, runs[0])).to_contain_text("ValueError: 0 is no address")
    expect(page.locator(".chip[data-state=failed] b")).to_have_text("3")
    expect(page.locator(".chip[data-state=queued] b")).to_have_text("0")


def test_changes_come_by_the_stream_even_when_nothing_else_is_answered(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.verbs.define("mail"))
    run = app.enqueue("mail", delay=3600)
    page.goto(hub.url)
    state(row(page, run), "scheduled")
    live(page)
    page.route(re.compile(r"/api/v1/(runs|stats|workers)"), _away)
    run.cancel()
    state(row(page, run), "cancelled")


def test_a_held_list_stays_as_it_is_until_it_goes_on(app: App, hub: ServedHub, page: Page) -> None:
    @app.job(name="mail")
    def mail() -> None: ...

    first = mail.enqueue()
    page.goto(hub.url)
    state(row(page, first), "queued")
    page.get_by_role("button", name="Hold").click()
    live(page, "paused")
    second = mail.enqueue()
    first.cancel()
    other = page.context.new_page()
    other.goto(hub.url)
    state(row(other, first), "cancelled")
    assert listed(page) == [first.id]
    state(row(page, first), "queued")
    page.get_by_role("button", name="Go on").click()
    state(row(page, first), "cancelled")
    shows(page, [second.id, first.id])


def test_filters_are_in_the_address_and_survive_a_reload(app: App, hub: ServedHub, page: Page) -> None:
    for name in ("mail", "report"):
        run_sync(app.verbs.define(name))
    slow = Options(queue="slow")
    mail, other = (app.enqueue("mail"), app.enqueue("report"))
    (moved,) = run_sync(app.verbs.create([NewRun("mail", options=slow)]))
    later = app.enqueue("mail", delay=3600)
    page.goto(hub.url)
    shows(page, [later.id, moved.id, other.id, mail.id])
    page.get_by_label("Only this job").fill("mail")
    page.get_by_label("Only this job").press("Enter")
    shows(page, [later.id, moved.id, mail.id])
    page.locator(".chip[data-state=queued]").click()
    shows(page, [mail.id, moved.id])
    page.get_by_label("Only this queue").fill("slow")
    page.get_by_label("Only this queue").press("Enter")
    shows(page, [moved.id])
    assert page.url == f"{hub.url}#/runs?state=queued&job=mail&queue=slow"
    page.reload()
    shows(page, [moved.id])
    expect(page.get_by_label("Only this job")).to_have_value("mail")
    expect(page.locator(".chip[data-state=queued]")).to_have_attribute("aria-current", "true")
    page.goto(f"{hub.url}#/runs?state=scheduled&job=mail")  # the hub has no such list: the page chooses from one it has
    shows(page, [later.id])
    page.goto(f"{hub.url}#/runs?queue=slow")
    shows(page, [moved.id])
    page.goto(f"{hub.url}#/runs?job=report&state=failed")
    expect(page.get_by_text("No run is like this.")).to_be_visible()
    page.get_by_role("link", name="Show all runs").click()
    shows(page, [later.id, moved.id, other.id, mail.id])


def test_pages_follow_the_cursor_and_can_be_shared(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.verbs.define("mail"))
    ids = [created.id for created in run_sync(app.verbs.create([NewRun("mail") for _ in range(120)]))][::-1]
    page.goto(hub.url)
    shows(page, ids[:50])
    page.get_by_role("link", name="Older").click()
    expect(row(page, ids[50])).to_be_visible()
    shows(page, ids[50:100])
    page.get_by_role("link", name="Older").click()
    shows(page, ids[100:])
    page.reload()
    shows(page, ids[100:])
    run_sync(app.verbs.cancel(ids[-1]))  # what happens is seen on every page
    state(row(page, ids[-1]), "cancelled")
    page.go_back()
    shows(page, ids[50:100])
    page.get_by_role("link", name="First page").click()
    shows(page, ids[:50])


def test_a_run_that_waits_says_why(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.verbs.define("transcode", options=Options(queue="video", requires=Requires(tags=("gpu",)))))
    before = app.enqueue("transcode", {"video": "intro.mov"})
    after = app.enqueue("transcode", {"video": "end.mov"}, after=before)
    page.goto(hub.url)
    expect(page.get_by_text("No worker is running")).to_be_visible()
    page.goto(f"{hub.url}#/runs/{before.id}")
    expect(page.locator(".callout")).to_contain_text("No worker is running. Start one: windlass work MODULE:APP")
    expect(page.locator(".callout code")).to_have_text("windlass work shop:app --queue=video --tag=gpu")
    page.goto(f"{hub.url}#/runs/{after.id}")
    expect(page.locator(".callout")).to_contain_text(f"It waits for run {before.id}")
    before.cancel()
    state(page, "cancelled")
    expect(page.locator(".callout")).to_have_count(0)


def test_a_log_is_followed_until_the_reader_scrolls_up(app: App, hub: ServedHub, page: Page) -> None:
    first, second, third = Gate(), Gate(), Gate()

    @app.job(name="talk")
    def talk(ctx: Context) -> None:
        for gate, lines in ((first, range(200)), (second, range(200, 300)), (third, range(300, 301))):
            gate.block()
            for n in lines:
                ctx.logger.info("line %d", n)

    run = talk.enqueue()
    page.goto(f"{hub.url}#/runs/{run.id}")
    expect(page.get_by_text("No line yet.")).to_be_visible()
    lines, button = page.locator(".lines"), page.get_by_role("button", name="Follow")
    with working(app):
        first.open()
        expect(page.locator(".line")).to_have_count(200)
        at_its_end(page)
        lines.evaluate("node => node.scrollTo(0, 100)")
        expect(button).to_be_visible()
        second.open()
        expect(page.locator(".line")).to_have_count(300)
        assert lines.evaluate("node => node.scrollTop") == 100
        button.click()
        expect(button).to_be_hidden()
        third.open()
        expect(page.locator(".line")).to_have_count(301)
        at_its_end(page)
        ended(run)
    assert page.locator(".line span").all_text_contents() == [f"INFO line {n}" for n in range(301)]
    page.reload()  # whoever comes later reads the same
    expect(page.locator(".line")).to_have_count(301)
    live(page, "ended")


def at_its_end(page: Page) -> None:
    """Wait until the last line of the log is the last one seen."""
    seen = "(node) => node.scrollTop > 0 && node.scrollHeight - node.scrollTop - node.clientHeight < 2"
    until(lambda: page.locator(".lines").evaluate(seen))


def test_attempts_keep_their_errors_and_stay_open_while_more_comes(app: App, hub: ServedHub, page: Page) -> None:
    gate = Gate()

    @app.job(name="charge", max_attempts=3, backoff=[0])
    def charge(ctx: Context) -> None:
        ctx.logger.info("try %d", ctx.attempt)
        if ctx.attempt == 3:
            gate.block()
        raise ConnectionError(f"no answer to try {ctx.attempt}")

    run = charge.enqueue()
    with working(app):
        gate.reached()
        page.goto(f"{hub.url}#/runs/{run.id}")
        expect(page.locator(".attempt")).to_have_count(3)
        page.locator(".attempt summary").first.click()
        expect(page.locator(".attempt pre").first).to_contain_text("ConnectionError: no answer to try 1")
        gate.open()
        state(page, "failed")
    expect(page.locator(".error pre")).to_contain_text("ConnectionError: no answer to try 3")
    expect(page.locator(".attempt pre").first).to_be_visible()
    expect(page.locator(".lines .break")).to_have_text(["attempt 2", "attempt 3"])


def test_steps_are_shown_with_their_results_as_text(app: App, hub: ServedHub, page: Page) -> None:
    key = "<img src=x onerror=alert(1)>"

    @app.job(name="charge", max_attempts=1)
    def charge(ctx: Context) -> None:
        ctx.step(key, lambda: {"receipt": key})
        ctx.step("ship", lambda: None)

    run = charge.enqueue()
    with working(app):
        page.goto(f"{hub.url}#/runs/{run.id}")
        state(page, "succeeded")
    expect(page.locator(".step summary code")).to_have_text([key, "ship"])
    page.locator(".step summary").first.click()
    expect(page.locator(".step pre").first).to_contain_text(f'"receipt": "{key}"')
    expect(page.locator(".step img")).to_have_count(0)


def test_a_run_shows_whom_it_has_notified(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.engine.define("mail"))
    run = app.enqueue("mail", notify="https://b.example/secret")
    run.cancel()
    page.goto(f"{hub.url}#/runs/{run.id}")
    section = page.locator("section", has=page.locator("h2", has_text="Webhooks"))
    expect(section).to_contain_text("run.cancelled · to https://b.example")
    expect(section).not_to_contain_text("secret")


def test_numbers_are_shown_as_they_were_written(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.verbs.define("sum"))
    run = app.enqueue("sum", {"large": 2**63 - 1, "small": 0.1, "__proto__": {"x": 1}})
    page.goto(f"{hub.url}#/runs/{run.id}")
    expect(page.locator("pre.json").first).to_have_text(
        '{\n  "large": 9223372036854775807,\n  "small": 0.1,\n  "__proto__": {\n    "x": 1\n  }\n}'
    )


def test_workers_show_who_is_there_and_what_they_do(app: App, hub: ServedHub, page: Page) -> None:
    gate = Gate()

    @app.job(name="report")
    def report() -> None:
        gate.block()

    page.goto(f"{hub.url}#/workers")
    expect(page.get_by_text("No worker has been seen.")).to_be_visible()
    expect(page.locator(".command code").last).to_have_text(f"windlass work shop:app --hub {hub.url}")
    run = report.enqueue()
    with working(app, name="box-1", slots=4, tags=["eu"]):
        card = page.locator(".card")
        expect(card.locator("h2")).to_have_text("box-1")
        expect(card).to_contain_text("1 of 4")
        expect(card).to_contain_text("eu")
        run_sync(app.verbs.worker_metrics("box-1", {"cpu": 37.4, "memory": 3 * 2**30, "memory_total": 8 * 2**30}))
        expect(card).to_contain_text("37 %")
        expect(card).to_contain_text("3.0 GiB of 8.0 GiB")
        card.get_by_role("link").click()
        state(page, "running")
        assert page.url == f"{hub.url}#/runs/{run.id}"
        gate.open()
        ended(run)


def test_jobs_are_listed(app: App, hub: ServedHub, page: Page) -> None:
    page.goto(f"{hub.url}#/jobs")
    expect(page.get_by_text("There are no jobs yet.")).to_be_visible()
    run_sync(app.verbs.define("mail", payload={"from": "shop"}, options=Options(queue="out", max_attempts=5)))
    run = app.enqueue("mail")
    expect(page.locator("tbody tr td")).to_contain_text(["mail", "", "out", "5", "", '"from": "shop"', "", "Pause"])
    page.get_by_role("link", name="mail").click()
    shows(page, [run.id])


# Doing


def test_a_run_is_cancelled_after_a_question(app: App, hub: ServedHub, page: Page) -> None:
    gate = Gate()

    @app.job(name="report")
    async def report() -> None:
        await gate.wait()

    run = report.enqueue()
    with working(app):
        page.goto(f"{hub.url}#/runs/{run.id}")
        state(page, "running")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("dialog").press("Escape")  # taken back
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert run.refresh().state is State.RUNNING
        page.get_by_role("button", name="Cancel").click()
        page.get_by_label("Reason").fill("not needed any more")
        page.get_by_role("button", name="Cancel the run").click()
        state(page, "cancelled")
    expect(page.locator(".facts")).to_contain_text("not needed any more")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_a_run_is_run_again_as_a_new_one(app: App, hub: ServedHub, page: Page) -> None:
    @app.job(name="mail", max_attempts=1)
    def mail(to: str) -> None:
        raise ValueError(to)

    run = mail.enqueue("ann")
    with working(app):
        ended(run)
        page.goto(f"{hub.url}#/runs/{run.id}")
        page.get_by_role("button", name="Run again").click()
        page.wait_for_url(lambda url: "/runs/" in url and run.id not in url)
        state(page, "failed")
    expect(page.locator("pre.json").first).to_have_text('{\n  "to": "ann"\n}')
    expect(page.locator(".notice")).to_contain_text("A new run was created")


def test_a_run_shows_its_schedule_its_group_and_how_many_are_ahead(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.verbs.define("mail"))
    group = run_sync(app.verbs.create_group(NewGroup(tuple(Member(NewRun("mail")) for _ in range(3)))))
    last = run_sync(app.verbs.members(group.id))[2]
    page.goto(f"{hub.url}#/runs/{last.id}")
    facts = page.locator(".facts")
    expect(facts).to_contain_text("Ahead of it2")
    expect(facts).to_contain_text(f"{group.id} · place 2")
    schedule = run_sync(app.verbs.schedule("nightly <b>", "mail", every="1h"))
    fired = run_sync(app.engine.create([NewRun("mail", schedule=schedule.id)]))[0]
    page.goto(f"{hub.url}#/runs/{fired.id}")
    page.get_by_role("link", name="nightly <b>").click()
    expect(page.locator("h1")).to_have_text("nightly <b>")


def test_a_job_shows_its_description_as_text(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.verbs.define("mail", description="Sends <b>mail</b>."))
    page.goto(f"{hub.url}#/jobs")
    expect(page.get_by_text("Sends <b>mail</b>.")).to_be_visible()


def test_priority_and_due_time_are_changed_while_it_waits(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.verbs.define("mail"))
    run = app.enqueue("mail", delay=3600)
    page.goto(f"{hub.url}#/runs/{run.id}")
    page.get_by_role("button", name="Change").click()
    page.get_by_label("Priority").fill("7")
    page.get_by_label("Due").fill("2030-01-31T03:00:00")
    page.get_by_role("button", name="Change").last.click()
    expect(page.locator(".facts")).to_contain_text("priority 7")
    expect(page.locator(".facts")).to_contain_text("2030-01-31 03:00:00")
    after = run.refresh()
    assert (after.priority, after.due_at) == (7, 1_896_058_800_000)


def test_what_came_too_late_is_refused_with_the_words_of_the_hub(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.verbs.define("mail"))
    run = app.enqueue("mail")
    page.goto(f"{hub.url}#/runs/{run.id}")
    page.get_by_role("button", name="Change").click()
    run.cancel()
    page.get_by_label("Priority").fill("7")
    page.get_by_role("button", name="Change").last.click()
    expect(page.locator(".notice .problem")).to_contain_text("cancelled")
    expect(page.locator(".notice .hint")).not_to_be_empty()
    page.goto(f"{hub.url}#/runs?cursor=forged")
    expect(page.locator("main .problem")).to_contain_text("The cursor is not one of this list.")
    expect(page.locator("main .problem .hint")).to_contain_text("or none to begin again")
    page.goto(f"{hub.url}#/runs/0199d1a0-0000-7000-8000-000000000000")
    expect(page.locator("main .problem .hint")).not_to_be_empty()


def test_a_job_is_paused_and_what_waits_says_so_and_goes_on(app: App, hub: ServedHub, page: Page) -> None:
    @app.job(name="mail")
    def mail() -> None: ...

    run = mail.enqueue()
    page.goto(f"{hub.url}#/jobs")
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Reason").fill("no <b>paper</b>")
    page.locator("dialog").get_by_role("button", name="Pause").click()
    expect(page.locator("tbody").get_by_role("button", name="Resume")).to_be_visible()
    with working(app):
        page.goto(f"{hub.url}#/runs/{run.id}")
        expect(page.locator(".callout")).to_contain_text("The job 'mail' is paused by anonymous: no <b>paper</b>.")
        page.locator(".callout").get_by_role("button", name="Resume").click()
        state(page, "succeeded")
    assert run_sync(app.verbs.pauses()) == []


def test_a_token_that_may_not_pause_is_told_so(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.verbs.define("mail"))
    run_sync(app.verbs.pause("system"))
    run = app.enqueue("mail")
    _, secret = run_sync(app.verbs.create_token("reader", ["read"]))
    page.goto(f"{hub.url}#/runs/{run.id}")
    page.get_by_label("Token").fill(secret)
    page.keyboard.press("Enter")
    resume = page.locator(".callout").get_by_role("button", name="Resume")
    expect(resume).to_be_disabled()
    expect(resume).to_have_attribute("title", re.compile("needs the scope admin"))


def test_who_occupies_a_resource_is_a_click_away(app: App, hub: ServedHub, page: Page) -> None:
    gate = Gate()

    @app.job(name="train", uses="gpu")
    def train() -> None:
        gate.block()

    runs = [train.enqueue(), train.enqueue()]
    with working(app, slots=2):
        gate.reached()
        page.goto(f"{hub.url}#/runs/{runs[1].id}")
        expect(page.locator(".callout")).to_contain_text("1 of 1 of 'gpu' are occupied")
        page.locator(".callout").get_by_role("link", name=runs[0].id).click()
        state(page, "running")
        gate.open()
        ended(runs[1])


def test_a_schedule_is_looked_at_turned_off_and_triggered(app: App, hub: ServedHub, page: Page) -> None:
    @app.job(name="report")
    def report(month: str = "may") -> None: ...

    page.goto(f"{hub.url}#/schedules")
    expect(page.get_by_text("There are no schedules yet.")).to_be_visible()
    app.schedule(report, key="reports/nightly", cron="0 3 * * *", zone="Europe/Paris")
    line = page.locator("tbody tr")
    expect(line).to_contain_text("At 03:00 every day")
    line.get_by_role("button", name="Turn off").click()
    expect(line.get_by_role("button", name="Turn on")).to_be_visible()
    assert not run_sync(app.verbs.get_schedule("reports/nightly")).enabled
    line.get_by_role("button", name="Turn on").click()
    expect(line.get_by_role("button", name="Turn off")).to_be_visible()
    line.get_by_role("link", name="reports/nightly").click()
    expect(page.locator(".next li")).to_have_count(10)
    expect(page.locator(".next li").first).to_contain_text("03:00:00")
    page.get_by_role("button", name="Run now").click()
    state(page, "queued")


# Who may


def test_a_token_is_asked_for_and_kept_out_of_every_address(app: App, hub: ServedHub, watched: Watched) -> None:
    page = watched.page
    _, secret = run_sync(app.verbs.create_token("ann", ["read"]))
    run_sync(app.verbs.define("mail"))
    run = app.enqueue("mail")
    page.goto(f"{hub.url}#/runs/{run.id}")
    field = page.get_by_label("Token")
    field.fill("wl_wrong")
    field.press("Enter")
    expect(page.locator("main .problem")).to_contain_text("This needs a valid token.")
    field.fill(secret)
    field.press("Enter")
    state(page, "queued")
    live(page)
    expect(page.locator(".who")).to_have_text("ann")
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()  # it may only read
    page.reload()
    state(page, "queued")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    assert not [url for url in watched.requests if secret in url]
    page.get_by_role("button", name="Sign out").click()
    expect(field).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_link_signs_in_once_and_leaves_the_address_at_once(app: App, hub: ServedHub, watched: Watched, browser: Browser) -> None:
    page = watched.page
    run_sync(app.verbs.create_token("root", ["admin"]))
    ticket = run_sync(app.engine.invite("ann", ["read", "submit"]))
    page.goto(f"{hub.url}#ticket={ticket}")
    expect(page.locator(".who")).to_have_text("ann")
    assert page.url == f"{hub.url}#/runs"
    assert page.evaluate("history.length") == 2  # of the blank page and this one: going back does not show the ticket either
    assert not [url for url in watched.requests if ticket in url]
    other = Watched(browser.new_context())
    other.page.goto(f"{hub.url}#ticket={ticket}")
    expect(other.page.locator(".notice .problem")).to_be_visible()
    expect(other.page.get_by_label("Token")).to_be_visible()
    assert other.page.url == f"{hub.url}#/runs"
    other.check()
    other.page.context.close()
    (session,) = (token for token in run_sync(app.verbs.tokens()) if token.kind == "session")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert run_sync(app.verbs.get_token(session.id)).revoked_at is not None


def test_a_token_that_is_revoked_leads_to_the_sign_in(app: App, hub: ServedHub, page: Page) -> None:
    token, secret = run_sync(app.verbs.create_token("ann", ["read"]))
    page.goto(hub.url)
    page.get_by_label("Token").fill(secret)
    page.get_by_label("Token").press("Enter")
    live(page)
    run_sync(app.verbs.revoke_token(token.id))
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.locator("main .problem")).to_contain_text("This needs a valid token.")


# Connections


def test_the_page_comes_back_after_a_restart_and_shows_what_happened(app: App, hub: ServedHub, page: Page) -> None:
    gate = Gate()

    @app.job(name="talk")
    def talk(ctx: Context) -> None:
        ctx.logger.info("before")
        gate.block()
        ctx.logger.info("meanwhile")

    run = talk.enqueue()
    with working(app):
        gate.reached()
        page.goto(hub.url)
        live(page)
        other = page.context.new_page()
        other.goto(f"{hub.url}#/runs/{run.id}")
        expect(other.get_by_text("INFO before")).to_be_visible()
        hub.stop()
        for one in (page, other):
            expect(one.locator('.connection[data-is="lost"]')).to_be_visible()
        gate.open()
        ended(run)
        late = talk.enqueue()
        ended(late)
        hub.start()
        state(row(page, run), "succeeded")
        state(row(page, late), "succeeded")
        live(page)
        state(other, "succeeded")
    expect(other.locator(".line span")).to_have_text(["INFO before", "INFO meanwhile"])
    live(other, "ended")


def test_a_hub_that_is_away_when_the_page_opens_is_waited_for(app: App, hub: ServedHub, page: Page) -> None:
    page.goto(hub.url)
    live(page)
    page.route("**/api/v1/me", _away)
    page.reload()
    expect(page.locator("main .problem")).to_contain_text("The hub does not answer.")
    page.unroute("**/api/v1/me")
    live(page)


def _away(route: Route) -> None:
    route.abort()


PIECES = [
    ["id: 1\ndata: a\ndata: b\n\n"],
    ["id", ": 1\nda", "ta: a\n", "data: b\n", "\n"],
    ["id: 1\r\ndata: a\r\ndata: b\r\n\r\n"],
    ["id: 1\r", "\ndata: a\r", "\ndata: b\r", "\n\r", "\n"],
    ["id: 1\rdata: a\rdata: b\r\r", ":"],
    [": a comment\n\nretry: 5\n\nid: 1\nevent: message\nignored: x\ndata:a\ndata:b\n\nid: 2\ndata: half"],
]


def test_events_are_read_whole_however_they_are_cut(hub: ServedHub, page: Page) -> None:
    page.goto(hub.url)
    read = """async (pieces) => {
      const { parser } = await import("./page/stream.js");
      const place = { id: null, retry: 1 };
      const parse = parser(place);
      return [pieces.flatMap((piece) => [...parse(piece)]), place.id];
    }"""
    for pieces in PIECES:
        assert page.evaluate(read, pieces) == [[{"type": "message", "data": "a\nb"}], "1"], pieces


# Text


class Corpus(NamedTuple):
    """A hub on which every text of the corpus is in every field that somebody can write."""

    hub: ServedHub
    runs: list[Run]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    folder = tmp_path_factory.mktemp("hostile")
    with App(str(folder / "windlass.db")) as app:
        runs = [hostile_run(app, text, END[n % len(END)]) for n, text in enumerate(HOSTILE)]
    with served(folder) as hub:
        yield Corpus(hub, runs)


def hostile_run(app: App, text: str, end: str) -> Run:
    """A run whose first attempt failed, and whose second ended like that; its job, schedule, queue and worker have the same name."""
    engine, info = app.engine, WorkerInfo(text, queues=(text,), jobs=(text,), tags=(text,))
    options = Options(queue=text, max_attempts=2, backoff=(0,), requires=Requires(tags=(text,)))
    run_sync(engine.define(text, payload={"from": text}, options=options))
    run_sync(engine.schedule(text, text, cron="0 3 * * *", payload={text: text}))
    run_sync(engine.create([NewRun(text, {text: text})]))
    run_sync(engine.register(info, about=dict.fromkeys(("host", "pid", "version", "python", "system"), text)))
    fail = Fail(error=Failure(text, text, f"Traceback\n  {text}"))
    first = hostile_attempt(app, info)
    run_sync(engine.report(first.id, replace(fail, token=first.token)))
    run = hostile_attempt(app, info)
    if end == "failed":
        run_sync(engine.report(run.id, replace(fail, token=run.token)))
    elif end == "succeeded":
        run_sync(engine.report(run.id, Succeed(token=run.token, output=json.dumps({text: text}))))
    elif end == "cancelling":
        run_sync(engine.cancel(run.id, reason=text))
    return run


def hostile_attempt(app: App, info: WorkerInfo) -> Run:
    """An attempt that has written to the log, and told how far it is."""
    engine, text = app.engine, info.name
    (run,) = run_sync(engine.claim(info, count=1, lease=AGES))
    held = Held(run.seq, token(run))
    run_sync(engine.start(run.id, held.token))
    run_sync(engine.log(run.id, held.token, [(1, text), (2, f"\x1b[31m{text}\n{text}")]))
    run_sync(engine.beat([held], lease=AGES, progress={held: json.dumps({"fraction": 0.5, "message": text})}))
    return run


END = ("failed", "succeeded", "running", "cancelling")
AGES = 24 * 3600 * 1000


def texts(page: Page, selector: str) -> set[str]:
    """What is written in all of these, on this page of a list and those behind it."""
    found: set[str] = set()
    while True:
        live(page)
        expect(page.locator("main h1")).to_be_visible()
        found |= set(page.locator(selector).all_text_contents())
        if not (more := page.locator('a[rel="next"]')).count():
            return found
        # The address changes before the page empties itself: only a heading that is gone says that what is read next is the next part.
        heading = page.query_selector("main h1")
        more.click()
        assert heading
        heading.wait_for_element_state("hidden")


@pytest.mark.parametrize(
    ("place", "selector"),
    [
        ("runs", "td.name a"),
        ("runs?state=failed", "td.what"),
        ("runs?state=running", "td.what"),
        ("jobs", "td.name a"),
        ("schedules", "td.name a"),
        ("workers", ".card h2"),
    ],
)
def test_I13_hostile_text_in_lists_is_only_text(corpus: Corpus, watched: Watched, place: str, selector: str) -> None:
    page = watched.page
    page.goto(f"{corpus.hub.url}#/{place}")
    shown = texts(page, selector)
    wanted = HOSTILE
    if "state" in place:
        name = place.partition("=")[2]
        wanted = [f"{text}: {text}" if name == "failed" else text for n, text in enumerate(HOSTILE) if END[n % len(END)] == name]
    assert shown == set(wanted)


@pytest.mark.parametrize("nth", [40, pytest.param(1, marks=long)])
def test_I13_hostile_text_in_runs_is_only_text(corpus: Corpus, watched: Watched, nth: int) -> None:
    page = watched.page
    for run in corpus.runs[::nth]:
        load(page, f"{corpus.hub.url}#/runs/{run.id}")
        expect(page.locator(".line span")).to_have_count(4)
        lines = page.locator(".line span").all_text_contents()
        assert lines == [run.job, f"\x1b[31m{run.job}\n{run.job}"] * 2
        assert json.loads(page.locator("pre.json").first.text_content() or "") == {"from": run.job, run.job: run.job}
        assert page.locator(".attempt pre").first.text_content() == f"Traceback\n  {run.job}"
        assert (page.locator("main h1").text_content() or "").endswith(f" {run.job}")
        watched.check()


@pytest.mark.parametrize("nth", [80, pytest.param(5, marks=long)])
def test_I13_hostile_text_in_filters_and_schedules_is_only_text(corpus: Corpus, watched: Watched, nth: int) -> None:
    page = watched.page
    for run in corpus.runs[::nth]:
        text = quote(run.job, safe="")
        page.goto(f"{corpus.hub.url}#/runs?job={text}&queue={text}")
        shows(page, [run.id])
        expect(page.get_by_label("Only this job")).to_have_value(run.job)
        if run.job not in DOTS:
            page.goto(f"{corpus.hub.url}#/schedules/{text}")
            expect(page.locator(".next li"), run.job).to_have_count(10)
            assert page.locator("main h1").text_content() == run.job
        watched.check()


ABOUT: list[dict[str, Any]] = [{}, {"host": "h"}, {"version": "1"}, {"pid": 7}, {"host": None, "pid": {}, "system": 2**60}]
METRICS: list[dict[str, float]] = [{}, {"cpu": 1.5, "memory": 2**60}, {"memory": 1, "disk_total": 2**60}, {"load1": 0.5}, {"cores": 4}]
PROGRESS = ("{}", "7", '{"message": {"of": 1}}', '{"fraction": null, "message": null}', '{"message": 1e300}')
WRITTEN = """() => [...document.querySelectorAll("body, body *")].filter((node) => !node.matches("pre.json")).flatMap((node) => [
  ...[...node.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE).map((child) => child.nodeValue),
  ...[...node.attributes].map((attribute) => attribute.value)])"""


def test_what_nobody_has_told_is_shown_as_nothing(app: App, hub: ServedHub, watched: Watched) -> None:
    engine, page, ids = app.engine, watched.page, []
    run_sync(engine.define("bare"))
    run_sync(engine.schedule("bare", "bare", every="1h"))
    for n, (about, metrics, progress) in enumerate(zip(ABOUT, METRICS, PROGRESS, strict=True)):
        info = WorkerInfo(f"w{n}")
        run_sync(engine.register(info, about=about))
        run_sync(engine.worker_metrics(info.name, metrics))
        run_sync(engine.create([NewRun("bare", {})]))
        (run,) = run_sync(engine.claim(info, count=1, lease=AGES))
        run_sync(engine.beat([held := Held(run.seq, token(run))], lease=AGES, progress={held: progress}))
        ids.append(run.id)
    run_sync(engine.report(ids[0], Succeed(token=run_sync(engine.get(ids[0])).token)))
    ids += [made.id for made in run_sync(engine.create([NewRun("bare", {}), NewRun("unknown", {})], undefined="wait"))]
    for place in ("workers", "runs", *(f"runs/{id}" for id in ids), "schedules", "schedules/bare", "jobs"):
        page.goto(f"{hub.url}?{place}#/{place}")  # another address, so that nothing of the view before is left
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator(".connection")).to_have_text(re.compile("live|ended"))
        wrong = [text for text in page.evaluate(WRITTEN) if re.search(r"\b(undefined|null|NaN|Infinity|Invalid)\b|\[object", text)]
        assert wrong == [], place
        watched.check()
        if place == "workers":
            cards = page.locator(".card").all_text_contents()
            assert [re.findall("Host(.*?)(?=Version|Since)", card) for card in cards] == [[], ["h"], [], ["pid 7"], []]
            assert [re.findall("Version(.*?)Since", card) for card in cards] == [[], [], ["1"], [], []]


DOTS = (".", "..")
"""Keys that no browser can put into a path: there they mean something else."""


# Files


def answer(url: str, **headers: str) -> tuple[int, Any, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as found:
            return found.status, found.headers, found.read()
    except HTTPError as error:
        return error.code, error.headers, error.read()


KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def test_every_file_is_served_as_what_it_is(hub: ServedHub) -> None:
    for file in sorted(FILES.iterdir()):
        status, headers, body = answer(f"{hub.url}page/{file.name}")
        assert (status, body) == (200, file.read_bytes())
        assert headers["content-type"].split(";")[0] == KINDS[file.suffix]
        assert headers["x-content-type-options"] == "nosniff"
        assert answer(f"{hub.url}page/{file.name}", **{"If-None-Match": headers["etag"]})[0] == 304


def test_the_policy_lets_only_our_own_files_run(hub: ServedHub) -> None:
    _, headers, body = answer(hub.url)
    said = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert body == (FILES / "index.html").read_bytes()
    assert {said[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert {said[name] for name in ("default-src", "base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert said["require-trusted-types-for"] == "'script'"


def test_there_is_nothing_else_to_be_had(hub: ServedHub) -> None:
    for path in ("page", "page/", "page/..", "page/%2e%2e/__init__.py", "page/..%2fmodel.py", "page/x.js", "model.py"):
        connection = http.client.HTTPConnection("127.0.0.1", hub.port)
        connection.request("GET", f"/{path}")
        assert connection.getresponse().status == 404, path
        connection.close()


SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|createContextualFragment|srcdoc|setHTML"
)


def test_no_file_makes_markup_from_text_or_asks_anybody_else() -> None:
    for file in FILES.iterdir():
        text = file.read_text(encoding="utf-8")
        assert SINKS.findall(text) == []
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    index = (FILES / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?! type=\"module\" src=\"page/main\.js\"></script>)|<style|\son\w+=|\sstyle=|\"/", index) == []


def test_the_wheel_has_every_file(tmp_path: Path) -> None:
    root = FILES.parent.parent.parent
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=root, check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"windlass/page/{file.name}" for file in FILES.iterdir()} <= set(names)


# Everywhere


@pytest.mark.parametrize("width", corners((380, 760, 1600)))
def test_nothing_is_wider_than_the_window(corpus: Corpus, watched: Watched, width: int) -> None:
    page = watched.page
    page.set_viewport_size({"width": width, "height": 800})
    longest = corpus.runs[HOSTILE.index("a" * 128)]
    for place in ("runs", f"runs/{longest.id}", "workers", "schedules", f"schedules/{longest.job}", "jobs"):
        page.goto(f"{corpus.hub.url}#/{place}")
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator(".connection")).to_have_text(re.compile("live|ended"))
        assert page.evaluate("document.documentElement.scrollWidth") == width, place


def test_a_run_is_found_and_cancelled_with_the_keyboard_alone(app: App, hub: ServedHub, page: Page) -> None:
    run_sync(app.verbs.define("mail"))
    run = app.enqueue("mail")
    page.goto(hub.url)
    shows(page, [run.id])
    _tab_to(page, "mail")
    page.keyboard.press("Enter")
    state(page, "queued")
    _tab_to(page, "Cancel")
    page.keyboard.press("Enter")
    _tab_to(page, "Cancel the run")
    page.keyboard.press("Enter")
    state(page, "cancelled")
    assert run.refresh().state is State.CANCELLED


def _tab_to(page: Page, words: str) -> None:
    """Press Tab until what has these words has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == words:
            return
    raise AssertionError(f"{words} cannot be reached")


def test_a_page_under_a_path_of_another_app_works_the_same(app: App, tmp_path: Path, page: Page) -> None:
    run_sync(app.verbs.define("mail"))
    run = app.enqueue("mail")
    with served(tmp_path, mounted="/ops/jobs") as hub:
        page.goto(f"{hub.url}ops/jobs/")
        row(page, run).locator("a").click()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Cancel the run").click()
        state(page, "cancelled")


# What it looks like

OVERLAPS = """(list) => {
  const parts = [...list.querySelectorAll("li > *")].flatMap((part) => {
    const range = document.createRange();
    range.selectNodeContents(part);
    return [...range.getClientRects(), part.getBoundingClientRect()].filter((box) => box.width).map((box) => [part, box]);
  });
  return parts.flatMap(([one, a], index) => parts.slice(index + 1)
    .filter(([other, b]) => one !== other
      && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 0.5)
    .map(([other]) => `${one.textContent} | ${other.textContent}`));
}"""
GAPS = """(list) => [...list.querySelectorAll("li")].flatMap((line) => {
  const boxes = [...line.children].filter((part) => part.textContent && part.offsetWidth).map((part) => {
    const range = document.createRange();
    range.selectNodeContents(part);
    return range.getBoundingClientRect();
  });
  return boxes.slice(1).map((box, index) => (box.top < boxes[index].bottom - 2 ? box.left - boxes[index].right : 99));
})"""
ALL_PILLS = """() => {
  const states = ["waiting", "scheduled", "queued", "claimed", "running", "cancelling", "succeeded", "failed", "quarantined",
    "cancelled", "skipped", "returned", "lapsed"];
  for (const place of document.querySelectorAll("body, main, tbody tr:first-child td:last-child, .card, .attempt, .facts")) {
    for (const state of states) {
      const pill = document.createElement("span");
      [pill.className, pill.dataset.state, pill.textContent] = ["pill", state, state];
      place.append(pill);
    }
  }
}"""
FAINT = """(least) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const light = (colours) => {
    canvas.globalAlpha = 1;
    canvas.clearRect(0, 0, 1, 1);
    for (const [colour, alpha] of colours) {
      canvas.globalAlpha = alpha;
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.nodeValue.trim() || !node.checkVisibility() || node.closest(":disabled, script, style")) continue;
    const around = [];
    for (let one = node; one; one = one.parentElement) around.unshift(one);
    let opacity = 1;
    const grounds = around.map((one) => {
      const style = getComputedStyle(one);
      opacity *= Number(style.opacity);
      return [style.backgroundColor, opacity];
    });
    const ink = [getComputedStyle(node).color, opacity];
    const [dark, bright] = [light(grounds), light([...grounds, ink])].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    const what = `${node.className || node.tagName} ${node.dataset.state ?? ""} ${walker.currentNode.nodeValue}`;
    if (contrast < least) found.push(`${contrast.toFixed(2)}: ${what}`);
  }
  return [...new Set(found)];
}"""


def test_nothing_in_a_timeline_overlaps(app: App, hub: ServedHub, page: Page) -> None:
    app.clock = clock = LeapingClock()
    run_sync(app.verbs.define("quarterly-report"))
    run = app.enqueue("quarterly-report", {}, delay=80)
    report = Fail(token="", error=Failure("Timeout", "no answer " * 20), delay=200_000_000)
    for leap in (80_000, 200_000_000):
        clock.leap(leap)
        run_sync(app.engine.sweep())
        clock.leap(80_000)
        (held,) = run_sync(app.verbs.claim(WorkerInfo("a-worker-with-a-rather-long-name.example.com"), count=1, lease=80_000_000))
        clock.leap(80_000)
        run_sync(app.engine.start(run.id, token(held)))
        clock.leap(550_000)
        run_sync(app.engine.report(run.id, replace(report, token=token(held))))
    page.goto(f"{hub.url}#/runs/{run.id}")
    timeline = page.locator(".timeline")
    expect(timeline.locator("li")).to_have_count(9)
    expect(timeline.get_by_text("+1 m 20 s").first).to_be_visible()
    for width in (1280, 840, 380):
        page.set_viewport_size({"width": width, "height": 900})
        assert timeline.evaluate(OVERLAPS) == [], width
        assert min(timeline.evaluate(GAPS)) >= 5, width  # "+1 m 20 s dispatch", and not "+1 m 20 sdispatch"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(scheme: Any, app: App, hub: ServedHub, page: Page) -> None:
    page.emulate_media(color_scheme=scheme)
    for name in ("mail", "broken", "poison"):
        run_sync(app.verbs.define(name, options=Options(max_attempts=1, on_exhausted="quarantined" if name == "poison" else "failed")))
    run_sync(app.engine.register(WorkerInfo("gone", tags=("gpu",)), about={"host": "far"}))
    run_sync(app.engine.leave("gone", 0))
    run_sync(app.engine.register(WorkerInfo("alive"), about={"host": "near"}))
    ids = [app.enqueue(name, {"to": "ann"}, queue=name).id for name in ("mail", "broken", "poison") for _ in range(3)]
    for run in [held for _ in ids for held in run_sync(app.verbs.claim(WorkerInfo("w", slots=99, queues=("broken", "poison"))))][:-2]:
        run_sync(app.engine.report(run.id, Fail(token=token(run), error=Failure("Boom", "broken", "trace"))))
    app.enqueue("mail", {}, delay=60)
    app.enqueue("mail", {}, after=ids[0])
    app.enqueue("mail", {}, delay=60).cancel()
    app.schedule("mail", key="nightly", cron="0 3 * * *", zone="Europe/Paris")
    app.schedule("mail", key="off", every="1h", enabled=False)
    faint: dict[str, str] = {}
    failed = run_sync(app.verbs.runs(state="failed")).runs[0].id
    for place in ("runs", "runs?state=failed", f"runs/{failed}", f"runs/{ids[0]}", "workers", "schedules", "schedules/nightly", "jobs"):
        load(page, f"{hub.url}#/{place}")
        expect(page.locator(".connection")).to_have_text(re.compile("live|ended"))
        expect(page.locator("main :is(tr, .card, .facts)").first).to_be_visible()
        page.evaluate(ALL_PILLS)
        faint |= dict.fromkeys(page.evaluate(FAINT, 4.5), place)
        if page.locator("tbody tr").count():
            page.locator("tbody tr").first.hover()
            faint |= dict.fromkeys(page.evaluate(FAINT, 4.5), f"{place}, below the pointer")
    assert faint == {}
