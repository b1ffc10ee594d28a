"""Two hubs on one PostgreSQL, ten remote workers, ten thousand runs, and somebody who kills hubs and workers as they come."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psycopg
import pytest

from windlass.clock import SystemClock, nap
from windlass.config.opening import migrate_store
from windlass.hub.serving import listening

RUNS, WORKERS, HUBS, WATCHERS = 10_000, 10, 2, 3
KILLS_A_HUB = 0.25  # chance that a kill is for a hub
EACH = 300  # runs that end between two kills
LEASE = "4s"
HERE = Path(__file__).parents[2]

_CLOCK = SystemClock()


def free_port() -> int:
    with listening("127.0.0.1", 0) as sock:
        return int(sock.getsockname()[1])


class Member:
    """A process that is started again whenever it was killed."""

    def __init__(self, words: list[str], environment: dict[str, str], log: Path) -> None:
        self._words, self._environment, self._log = words, environment, log
        self.kills = 0
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "windlass", *self._words]
            self.process = subprocess.Popen(command, env=self._environment, cwd=HERE, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.kills += 1
        self.start()

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


class Receiver:
    """Who is told by webhook: it notes what it gets, and refuses now and then."""

    def __init__(self) -> None:
        self.got: Counter[tuple[str, str]] = Counter()
        chance, lock = random.Random(1), threading.Lock()
        received = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    refused = chance.random() < 0.02
                    if not refused:
                        received[body["data"]["run"], body["data"]["state"]] += 1
                self.send_response(500 if refused else 204)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Watcher:
    """Who follows the events of everything, from one hub to the next, whenever the one it was at has gone."""

    def __init__(self, hubs: list[str]) -> None:
        self.ends: Counter[tuple[str, str]] = Counter()
        self.seen: Counter[tuple[str, int]] = Counter()
        self.order: dict[str, int] = {}
        self.breaks, self.wrong = 0, list[str]()
        self._hubs, self._last, self._over = hubs, "", False
        self.connected = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        turn = 0
        while not self._over:
            try:
                self._follow(self._hubs[turn % len(self._hubs)])
            except (httpx.HTTPError, ConnectionError):
                self.breaks += 1
                nap(0.05)
            turn += 1

    def _follow(self, hub: str) -> None:
        headers = {"Last-Event-ID": self._last} if self._last else {}
        with httpx.stream("GET", f"{hub}/api/v1/events", headers=headers, timeout=30) as answer:
            answer.raise_for_status()
            self.connected.set()
            data = event = seen = ""
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    seen = value
                elif name == "event":
                    event = value
                elif name == "data":
                    data = value
                elif not line:
                    if data:
                        self._take(event, json.loads(data))
                    self._last, data, event = seen or self._last, "", ""
                    if self._over:
                        return

    def _take(self, event: str, told: dict[str, object]) -> None:
        if "run" not in told or "rev" not in told:
            self.wrong.append(f"{event}: {told}")
            return
        run, rev = str(told["run"]), int(str(told["rev"]))
        self.seen[run, rev] += 1
        if self.order.get(run, 0) + 1 != rev:
            self.wrong.append(f"{run}: {rev} after {self.order.get(run, 0)}")
        self.order[run] = rev
        if told["state"] in ("succeeded", "failed", "quarantined", "cancelled", "skipped"):
            self.ends[run, str(told["state"])] += 1

    def end(self) -> None:
        self._over = True
        self._thread.join(60)


@contextmanager
def fleet(store: str, folder: Path) -> Iterator[tuple[list[Member], list[Member], list[str]]]:
    environment = os.environ | {"WINDLASS_LOG_LEVEL": "warning"}
    ports = [free_port() for _ in range(HUBS)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:

        def member(name: str, *words: str) -> Member:
            made = Member(list(words), environment, folder / f"{name}.log")
            stack.callback(made.process.kill)
            return made

        hubs = [
            member(f"hub{n}", "hub", "--store", store, "--port", str(port), "--allow", "127.0.0.0/8", "--plain-http")
            for n, port in enumerate(ports)
        ]
        for url in urls:
            wait_until(lambda url=url: answers(url), "the hubs are up")  # type: ignore[misc]
        workers = [
            member(
                f"worker{n}", "work", "tests.proof.fleet_app:app", "--hub", urls[n % HUBS], "--slots", "32", "--lease", LEASE,
                "--grace", "2s", "--spool", str(folder / "spool"),
            )
            for n in range(WORKERS)
        ]  # fmt: skip
        try:
            yield hubs, workers, urls
        finally:
            for one in (*workers, *hubs):
                one.process.kill()
                one.process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 240) -> None:

    deadline = _CLOCK.monotonic() + seconds * 1000
    while not condition():
        assert _CLOCK.monotonic() < deadline, f"In vain: {what}."
        nap(0.1)


def ask_for(urls: list[str], numbers: range) -> list[str]:
    """Ask for runs under a key, again and again until a hub has answered."""
    asked = {"runs": [{"job": "step", "payload": {"n": n}} for n in numbers]}
    for turn in range(1_000):
        try:
            answer = httpx.post(
                f"{urls[turn % HUBS]}/api/v1/runs/batch", json=asked, headers={"Idempotency-Key": f"from {numbers.start}"}, timeout=30
            )
        except httpx.HTTPError:
            nap(0.1)
            continue
        if answer.status_code == 202:
            return [made["id"] for made in answer.json()["runs"]]
        assert answer.status_code >= 500, answer.text
    raise AssertionError("no hub took the runs")


@pytest.mark.timeout(900)
def test_every_run_ends_once_and_everybody_is_told_whoever_is_killed(postgres_url: str, tmp_path: Path) -> None:
    migrate_store(postgres_url, SystemClock())
    chance, receiver = random.Random(7), Receiver()
    with fleet(postgres_url, tmp_path) as (hubs, workers, urls), psycopg.connect(postgres_url, autocommit=True) as store:
        hook = httpx.post(f"{urls[0]}/api/v1/webhooks", json={"url": receiver.url, "delays": [200] * 30}, timeout=30)
        assert hook.status_code in (200, 201), hook.text
        watchers = [Watcher(urls[n % HUBS :] + urls[: n % HUBS]) for n in range(WATCHERS)]
        for watcher in watchers:
            assert watcher.connected.wait(60)
        wait_until(lambda: store.execute("select count(*) from jobs where name = 'step'").fetchone() == (1,), "the job is known")
        ids = set[str]()
        for first in range(0, RUNS, 1_000):
            ids |= set(ask_for(urls, range(first, first + 1_000)))
            kill_somebody(chance, hubs, workers)
        assert len(ids) == RUNS
        last = RUNS

        def ended() -> bool:
            """Somebody is killed with every few runs that have ended: however slow the machine is, there is progress between two kills."""
            nonlocal last
            (unfinished,) = store.execute("select count(*) from job_runs where finished_at is null").fetchone() or (RUNS,)
            if 0 < unfinished < last - EACH:
                kill_somebody(chance, hubs, workers)
                last = unfinished
            return bool(unfinished == 0)

        wait_until(ended, "all runs end", 600)
        states = Counter(state for (state,) in store.execute("select state from job_runs"))
        assert states == {"succeeded": RUNS}
        twice = store.execute(
            "select run, count(*) from job_journal where state in ('succeeded', 'failed', 'quarantined', 'cancelled', 'skipped') "
            "group by run having count(*) <> 1"
        ).fetchall()
        assert twice == []
        wanted = {(run, "succeeded") for run in ids}
        wait_until(lambda: all(watcher.ends.keys() >= wanted for watcher in watchers), "the watchers saw every end")
        wait_until(lambda: receiver.got.keys() >= wanted, "the receiver got every end")
        for watcher in watchers:
            watcher.end()
            assert watcher.wrong == []
            assert set(watcher.ends.values()) == {1}
            assert set(watcher.seen.values()) == {1}
        print(
            f"{RUNS} runs, {sum(hub.kills for hub in hubs)} hubs and {sum(worker.kills for worker in workers)} workers killed, "
            f"{sum(watcher.breaks for watcher in watchers)} streams broken, {sum(receiver.got.values()) - RUNS} webhooks twice"
        )
        assert min(hub.kills for hub in hubs) > 0
    receiver.close()


def kill_somebody(chance: random.Random, hubs: list[Member], workers: list[Member]) -> None:
    chance.choice(hubs if chance.random() < KILLS_A_HUB else workers).kill()
