"""A program with a worker, for tests that signal, pause or kill it. Every line it prints says what has happened.

Started as `python -m tests.worker_child ADDRESS [SLOTS [LEASE [GRACE]]]`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from contextlib import suppress

from windlass import App, Context


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def did(ctx: Context, key: str) -> str:
    say("did", ctx.run, ctx.attempt, key)
    return f"{key} of attempt {ctx.attempt}"


class Stops(logging.Handler):
    """Says when the worker shall stop, and the claim that was under way by then is answered."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().endswith("claims nothing more."):
            say("stopping")


def main(address: str, slots: str = "1", lease: str = "10", grace: str = "30") -> None:
    logger = logging.getLogger("windlass.worker")
    logger.addHandler(Stops())
    logger.setLevel(logging.INFO)
    app = App(address)

    @app.job(name="held")
    def held(ctx: Context) -> str:
        """Returns what the test tells it."""
        say("began", ctx.run, ctx.attempt, ctx.token)
        line = sys.stdin.readline().strip()
        say("ends", ctx.run, ctx.why)
        return line

    @app.job(name="quick")
    def quick(ctx: Context) -> str:
        say("did", ctx.run, ctx.attempt)
        return "quick"

    @app.job(name="pays", backoff=(0,))
    def pays(ctx: Context) -> list[str]:
        return [ctx.step(key, did, ctx, key) for key in ("charge", "pack", "ship")]

    @app.job(name="stuck")
    def stuck(ctx: Context) -> None:
        """Never ends."""
        say("began", ctx.run, ctx.attempt)
        threading.Event().wait()

    @app.job(name="deaf")
    async def deaf(ctx: Context) -> None:
        """Never ends, whoever cancels it."""
        say("began", ctx.run, ctx.attempt)
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    recycle = app.work(slots=int(slots), lease=float(lease), grace=float(grace), name="child")
    say("over", recycle)


if __name__ == "__main__":
    main(*sys.argv[1:])
