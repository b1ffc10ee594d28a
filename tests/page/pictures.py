"""Makes the pictures of docs/page.md: `python -m tests.page.pictures`, or with a folder to write to."""

from __future__ import annotations

import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from playwright.sync_api import Browser

from tests.harness import token
from tests.page.browsers import Watched, chromium
from tests.served import ServedHub
from tests.workers import ended, until, working
from windlass import App, Context, Fail, Handle, machine
from windlass.model import Failure, WorkerInfo
from windlass.store.base import run_sync

FOLDER = Path(__file__).parents[2] / "docs" / "images"
LINES = ["reading orders", "1,204 orders of 311 customers", "sheet 1: totals by country", "sheet 2: returns", "sheet 3: charts"]
TRACE = """\
Traceback (most recent call last):
  File "/srv/shop/jobs.py", line 31, in charge
    receipt = bank.charge(order, card)
  File "/srv/shop/bank.py", line 84, in charge
    raise ConnectionError(f"the payment service answered {answer.status}")
ConnectionError: the payment service answered 503
"""
SIZES = {"wide": (1200, 640), "narrow": (380, 800)}


def shop(file: Path) -> App:
    """An app with something of everything."""
    app = App(str(file))

    @app.job(name="report", timeout=600)
    def report(ctx: Context, month: str, sheets: int) -> None:
        for index, line in enumerate(LINES):
            ctx.logger.info(line)
            ctx.progress(0.15 * index + 0.02, line)
        while True:
            ctx.pause(0.05)

    @app.job(name="charge", max_attempts=2, backoff=[0])
    def charge(ctx: Context, order: int, card: str) -> str:
        ctx.logger.info("charging order %d", order)
        if card == "stolen":
            raise Fail("the card was reported stolen", retry=False, code="stolen_card")
        ctx.logger.info("the bank says yes")
        return f"receipt {order:06}"

    @app.job(name="mail")
    def mail(to: str) -> None: ...

    @app.job(name="transcode", tags=["gpu"], queue="video")
    def transcode(video: str) -> None: ...

    app.schedule(report, key="nightly-report", payload={"month": "2026-03", "sheets": 4}, cron="0 3 * * *", zone="Europe/Paris")
    app.schedule(mail, key="restock", payload={"to": "stock@example.com"}, every="15m")
    return app


def declined(app: App) -> Handle[Any]:
    """A run that has failed twice, reported by hand so that its traceback is one of the shop's own."""
    run = app.enqueue("charge", {"order": 1017, "card": "declined"})
    lines = [(1, "INFO charging order 1017"), (2, "WARNING no answer within 50 ms, asking once more")]
    report = machine.Fail(token="", error=Failure("ConnectionError", "the payment service answered 503", TRACE), delay=0)
    for _ in range(2):
        (claimed,) = run_sync(app.verbs.claim(WorkerInfo("worker-1"), count=1, lease=30_000))
        run_sync(app.engine.start(run.id, token(claimed)))
        run_sync(app.engine.log(run.id, token(claimed), lines))
        threading.Event().wait(0.05)  # so that there is something to see in its timeline
        run_sync(app.engine.report(run.id, replace(report, token=token(claimed))))
    return run


def fill(app: App) -> dict[str, Handle[Any]]:
    """Runs in every state; those that the pictures show, by name."""
    for order in range(1001, 1015):
        ended(app.enqueue("charge", {"order": order, "card": "visa"}))
    ended(app.enqueue("charge", {"order": 1016, "card": "stolen"}))
    for name in ("ann", "bob", "eve"):
        ended(app.enqueue("mail", {"to": f"{name}@example.com"}))
    later = app.enqueue("mail", {"to": "zoe@example.com"}, delay=2 * 3600)
    app.enqueue("mail", {"to": "max@example.com"}, delay=3600).cancel(reason="asked for by support")
    app.enqueue("mail", {"to": "kim@example.com"}, after=later)
    running = app.enqueue("report", {"month": "2026-03", "sheets": 4})
    until(lambda: (running.refresh().progress or "").count(LINES[-1]))
    waits = app.enqueue("transcode", {"video": "intro.mov"})
    return {"running": running, "waits": waits}


def take(browser: Browser, url: str, shown: dict[str, Handle[Any]], folder: Path) -> None:
    """One picture of each view, in light and in dark."""
    views = {"runs": "runs", "run": f"runs/{shown['failed'].id}"}
    more = {"live": f"runs/{shown['running'].id}", "why": f"runs/{shown['waits'].id}", "workers": "workers", "schedules": "schedules",
            "schedule": "schedules/nightly-report", "jobs": "jobs"}  # fmt: skip
    for scheme in ("light", "dark"):
        for size, (width, height) in SIZES.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            watched = Watched(context)
            for name, place in (views | (more if folder != FOLDER else {})).items():
                watched.page.goto(f"{url}#/{place}")
                watched.page.wait_for_selector('.connection:text("live"), .connection:text("ended")')
                watched.page.wait_for_timeout(1_200)
                if folder != FOLDER or size == "wide":
                    ending = "" if size == "wide" else "-narrow"
                    watched.page.screenshot(path=folder / f"{name}-{scheme}{ending}.png", full_page=folder != FOLDER or name == "run")
            watched.check()
            context.close()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "shop.db"
        app = stack.enter_context(shop(file))
        hub = ServedHub(file)
        stack.callback(hub.stop)
        failed = declined(app)
        stack.enter_context(working(app, name="worker-1", slots=8, tags=["eu"], cores=4, memory=8192))
        take(stack.enter_context(chromium()), hub.url, {"failed": failed, **fill(app)}, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
