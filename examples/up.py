"""`make up`: the example shop on a hub with its page and a worker, and customers who keep it busy. Ctrl-C drains."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import shop

from windlass import Handle, State
from windlass.clock import Clock
from windlass.errors import WrongState

EVERY = 0.25  # seconds
MAX_QUEUED = 24
CHANCE = 0.5  # of something new each time
DOUBT = 1_500  # milliseconds that a report runs before somebody no longer wants it


class Customers:
    """Who keeps the shop busy: with one of everything at first, then with a trickle of this and that."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.orders, self.pictures = clock, 0, 0
        self.doubtful: list[Handle[dict[str, int]]] = []
        self.wishes = [self.want_report, self.order, self.doubt_report, self.upload, self.order, self.order]

    def come(self, queued: int) -> None:
        """Ask for one thing or for nothing; and perhaps think better of another."""
        self.change_minds()
        if self.wishes:
            self.wishes.pop(0)()
        elif queued < MAX_QUEUED and self.clock.chance() < CHANCE:
            self.anything()()

    def anything(self) -> Callable[[], None]:
        choices = (*[self.order] * 5, *[self.upload] * 3, *[self.write_all] * 2, self.want_report, self.doubt_report)
        return choices[int(self.clock.chance() * len(choices))]

    def order(self) -> None:
        self.orders += 1
        shop.place_order(self.orders, card="stolen" if self.orders % 7 == 2 else "good", to="ann@example.com")

    def upload(self) -> None:
        self.pictures += 1
        shop.thumbnail.enqueue(f"cat-{self.pictures}.png")

    def write_all(self) -> None:
        shop.app.enqueue_many(
            shop.mail.options(priority=-1).new(f"{name}@example.com", "new in the shop") for name in ("ann", "bob", "eve")
        )

    def want_report(self) -> None:
        shop.report.enqueue("May")

    def doubt_report(self) -> None:
        self.doubtful.append(shop.report.enqueue("June"))

    def change_minds(self) -> None:
        """Cancel the reports that nobody wants any more, while they run."""
        for handle in list(self.doubtful):
            run = handle.refresh()
            if run.started_at is not None and self.clock.now() - run.started_at > DOUBT:
                self.doubtful.remove(handle)
                with suppress(WrongState):  # it has ended meanwhile
                    handle.cancel(reason="nobody wants it any more")


def up(store: str, port: int) -> list[str]:
    """The command that serves the shop."""
    return [
        sys.executable,
        "-m",
        "windlass",
        "up",
        "shop:app",
        "--store",
        store,
        "--port",
        str(port),
        "--slots",
        "4",
        "--log-level",
        "warning",
    ]


def keep_busy(process: subprocess.Popen[bytes], over: threading.Event, seconds: float | None) -> None:
    """Let customers come until it is stopped, the time is over, or nothing serves them. The time counts from the first run that ended."""
    clock = shop.app.clock
    customers, ends = Customers(clock), float("inf")
    while process.poll() is None and not over.wait(EVERY) and clock.monotonic() < ends:
        if seconds is not None and ends == float("inf") and shop.app.runs(state=State.SUCCEEDED, count=1).runs:
            ends = clock.monotonic() + seconds * 1000
        customers.come(len(shop.app.runs(state=State.QUEUED, count=MAX_QUEUED).runs))


def main() -> int:
    """Serve, keep busy, drain; the exit code of what served."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="keep the runs here (default: a file that is removed at the end)")
    parser.add_argument("--port", type=int, default=8080, help="where the page is (default: 8080); 0 is any free one")
    parser.add_argument("--seconds", type=float, help="end by itself so many seconds after the first run has ended")
    arguments = parser.parse_args()
    over = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        over.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, stop)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WINDLASS_STORE"] = store = os.path.abspath(arguments.store or str(Path(folder) / "shop.db"))
        # In a session of its own: a Ctrl-C in the terminal is meant for us, and we pass it on once.
        process = subprocess.Popen(up(store, arguments.port), cwd=shop.HERE, start_new_session=True)
        try:
            keep_busy(process, over, arguments.seconds)
        finally:
            shop.app.close()
            if process.poll() is None:
                print("Draining: what runs may finish, nothing new begins.", flush=True)
                process.send_signal(signal.SIGTERM)
            code = process.wait()
    return code


if __name__ == "__main__":
    sys.exit(main())
