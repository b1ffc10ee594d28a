"""Programs that runs bring along: what is executed is what was named, in a place with nothing of the worker's."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.tiers import long
from tests.workers import DEADLINE, Gate, ended, in_state, until, working
from windlass import App, Handle, State
from windlass.config.opening import solvers_of
from windlass.config.settings import Settings
from windlass.egress import Egress
from windlass.errors import BadInput
from windlass.machine import Fail, Report, Succeed
from windlass.model import Failure, Limits, NewRun, Options, Run, Solver
from windlass.store.base import run_sync
from windlass.worker import Worker, solvers
from windlass.worker.commands import Watchdog
from windlass.worker.context import Call, Context, Nowhere
from windlass.worker.solvers import Image, Mismatch, SolverExecutor, Solvers

ROUNDS = int(500 * float(os.environ.get("TORTURE", "1")))
SHELL = b"#!/bin/sh\n"
HELLO = SHELL + b"echo hello\n"
PYTHON = f"#!{sys.executable} -I\n".encode()
KINDS = (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)


def sha(program: bytes) -> str:
    return hashlib.sha256(program).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None: ...  # a client that went away


class Offered(Solver, frozen=True):
    """A program with its checksum."""

    checksum: str = ""


class Files:
    """A server on loopback. What a path gives is its bytes, a status, or what a function makes of the number of times it was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes | int | Callable[[int], bytes]] = {}
        self.asked: list[str] = []
        outer, lock = self, threading.Lock()

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with lock:
                    outer.asked.append(self.path)
                    number = outer.asked.count(self.path)
                content = outer.files.get(self.path, 404)
                if callable(content):
                    content = content(number)
                self.send_response(content if isinstance(content, int) else 200)
                self.send_header("Content-Length", "0" if isinstance(content, int) else str(len(content)))
                self.end_headers()
                if not isinstance(content, int):
                    self.wfile.write(content)

            def log_message(self, *words: Any) -> None: ...

        self._server = _Server(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def offer(self, program: bytes, path: str = "/solver") -> Offered:
        self.files[path] = program
        return Offered(f"{self.address}{path}", sha(program))

    def __enter__(self) -> Files:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def files() -> Iterator[Files]:
    with Files() as server:
        yield server


def loopback(cache: Path, **how: Any) -> Solvers:
    return Solvers(Egress(allow=["127.0.0.0/8"], plain_http=True), cache=cache, **how)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def app() -> App:
    made = App(":memory:")

    @made.job()
    def solve(a: int = 0, n: int = 0, text: str = "") -> str:
        return "the job's own code"

    return made


def asked(app: App, solver: Solver, payload: Any = None, **options: Any) -> Handle[Any]:
    """A run that brings a program along."""
    if solver.checksum is not None:
        options["solver_checksum"] = solver.checksum
    return app.enqueue("solve", payload, solver_url=solver.url, **{"max_attempts": 1} | options)


def solved(app: App, cache: Path, solver: Solver, payload: Any = None, *, limits: dict[str, Any] | None = None, **options: Any) -> Run:
    """How such a run ends on a worker that executes them."""
    handle = asked(app, solver, payload, **options)
    with working(app, solvers=loopback(cache, **limits or {})):
        return ended(handle)


def output(run: Run) -> Any:
    assert run.state is State.SUCCEEDED, run.error
    return None if run.output is None else json.loads(run.output)


def failure(run: Run) -> Failure:
    assert run.state is State.FAILED
    assert run.error is not None
    return run.error


# Without a worker around it


class RecordingSink(Nowhere):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, text: str) -> None: ...

    def beat(self) -> None: ...


def attempt(solvers: Solvers, solver: Solver, payload: str = "{}") -> SolverExecutor:
    sink, call = RecordingSink(), Call("run1", "solve", 1, "token1", payload, 3, 0, 0)
    return SolverExecutor(solvers, solver, Context(call, sink), call, sink, Watchdog())


def ran(solvers: Solvers, solver: Solver, payload: str = "{}") -> Report:
    executor = attempt(solvers, solver, payload)
    try:
        return executor.run()
    finally:
        executor.watchdog.close()


def result(report: Report) -> Any:
    assert isinstance(report, Succeed), report
    return None if report.output is None else json.loads(report.output)


def error(report: Report) -> Failure:
    assert isinstance(report, Fail), report
    return report.error


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the program is executed from; a folder where the system has no files in memory."""
    if request.param == "folder":
        monkeypatch.setattr(solvers, "_in_memory", lambda: None)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no files in memory")
    return str(request.param)


# The contract


def test_F23_a_worker_claims_runs_the_solver_with_params_and_reports(app: App, cache: Path, files: Files) -> None:
    solver = files.offer(
        PYTHON
        + b"import json, os, sys\n"
        + b"env = {name: os.environ[name] for name in ('JOB_ID', 'JOB_TYPE', 'JOB_PARAMS')}\n"
        + b"print(json.dumps({'argv': sys.argv[1:], 'stdin': sys.stdin.read(), 'env': env}))\n"
    )
    run = solved(app, cache, solver, {"n": 7})
    said = output(run)
    assert said["argv"] == ["--params", '{"n":7}']
    assert said["stdin"] == '{"n":7}'
    assert said["env"] == {"JOB_ID": run.id, "JOB_TYPE": "solve", "JOB_PARAMS": '{"n":7}'}


def test_F24_a_checksum_mismatch_fails_the_run_and_nothing_is_executed(app: App, cache: Path, files: Files, tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    files.offer(SHELL + f"touch {trace}\n".encode())
    run = solved(app, cache, Solver(f"{files.address}/solver", sha(HELLO)), max_attempts=3)
    assert failure(run).code == "solver_checksum_mismatch"
    assert failure(run).message.startswith("solver_checksum_mismatch")
    assert run.attempt == 1  # it would be the same again
    assert not trace.exists()
    assert not any(len(name) == 64 for name in os.listdir(cache))


def test_F26_a_solver_with_a_cached_checksum_is_not_downloaded_again(app: App, cache: Path, files: Files) -> None:
    solver = files.offer(HELLO)
    for _ in range(3):
        assert output(solved(app, cache, solver)) == "hello"
    moved = Solver(f"{files.address}/elsewhere", solver.checksum.upper())
    assert output(solved(app, cache, moved)) == "hello"
    assert files.asked == ["/solver"]


def test_a_download_that_fails_is_tried_again(app: App, cache: Path, files: Files) -> None:
    solver = files.offer(HELLO)
    files.files["/solver"] = lambda number: 503 if number == 1 else HELLO  # type: ignore[assignment,return-value]
    run = solved(app, cache, solver, max_attempts=2, backoff=[0])
    assert output(run) == "hello"
    first = run_sync(app.verbs.attempts(run.id))[0]
    assert first.error is not None
    assert first.error.message == "download failed: HTTP 503"


@pytest.mark.parametrize("status", [204, 206, 301, 302, 404, 500])
def test_an_answer_that_is_not_the_program_is_a_failed_download(cache: Path, files: Files, status: int) -> None:
    solver = files.offer(HELLO)
    files.files["/solver"] = status
    assert error(ran(loopback(cache), solver)).message == f"download failed: HTTP {status}"


def test_a_program_that_is_too_large_is_refused_for_good(cache: Path, files: Files) -> None:
    solver = files.offer(HELLO + bytes(1_000))
    report = ran(loopback(cache, largest=1_000), solver)
    assert isinstance(report, Fail)
    assert (report.error.code, report.retry) == ("egress_too_large", False)


def test_an_address_that_must_not_be_reached_is_refused_for_good(cache: Path, files: Files) -> None:
    solver = files.offer(HELLO)
    for egress in (
        Egress(plain_http=True),
        Egress(allow=["127.0.0.0/8"]),
        Egress(allow=["127.0.0.0/8"], plain_http=True, only=["a.example"]),
    ):
        report = ran(Solvers(egress, cache=cache), solver)
        assert isinstance(report, Fail)
        assert (report.error.code, report.retry) == ("egress_refused", False)
    assert files.asked == []


def test_a_cached_program_is_executed_only_if_its_host_may_be_used(app: App, cache: Path, files: Files, tmp_path: Path) -> None:
    solver = files.offer(SHELL + f"echo again >> {tmp_path}/executed\n".encode())
    assert solved(app, cache, solver).state is State.SUCCEEDED
    elsewhere = Egress(allow=["127.0.0.0/8"], plain_http=True, only=["a.example"])
    handle = asked(app, solver, max_attempts=3)
    with working(app, solvers=Solvers(elsewhere, cache=cache), name="w2"):
        run = ended(handle)
    assert (failure(run).code, run.attempt) == ("egress_refused", 1)
    assert (tmp_path / "executed").read_text() == "again\n"


def test_a_worker_without_solvers_is_never_offered_such_a_run(app: App, cache: Path, files: Files) -> None:
    handle = asked(app, files.offer(HELLO))
    plain = app.enqueue("solve")
    with working(app, tags=["solver"]) as at_work:
        ended(plain)
        assert "solver" not in at_work.worker.info.tags
        assert handle.refresh().state is State.QUEUED
    with working(app, solvers=loopback(cache), name="w2") as at_work:
        assert output(ended(handle)) == "hello"
        assert at_work.worker.info.tags == ("solver",)


def test_a_worker_that_knows_no_jobs_executes_solvers(app: App, cache: Path, files: Files) -> None:
    new = NewRun("unheard-of", {"a": 1}, Options(solver=files.offer(HELLO)))
    [made] = run_sync(app.verbs.create([new], undefined="wait"))
    with working(App(":memory:"), solvers=loopback(cache)) as at_work:
        pass
    assert at_work.worker.info.jobs == ()
    with working(app, solvers=loopback(cache), jobs=[], name="w2"):
        assert output(until(lambda: run if (run := run_sync(app.verbs.get(made.id))).state is State.SUCCEEDED else None)) == "hello"


def test_the_settings_make_a_worker_with_solvers(app: App, cache: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SOLVERS": "true",
        "SOLVER_CACHE": str(cache),
        "SOLVER_ALLOW": "127.0.0.0/8",
        "SOLVER_PLAIN_HTTP": "1",
        "SOLVER_MEMORY": "700MiB",
        "SOLVER_PROCESSES": "300",
        "SOLVER_FILE_SIZE": "1GiB",
    }.items():
        monkeypatch.setenv(f"WINDLASS_{name}", value)
    handle = asked(app, files.offer(HELLO))
    with working(app) as at_work:
        assert output(ended(handle)) == "hello"
        assert at_work.worker.solvers is not None
        assert at_work.worker.solvers.memory == 700
        assert (at_work.worker.solvers.processes, at_work.worker.solvers.file_size) == (300, 1_024)


# What may be asked for


@pytest.mark.parametrize(
    ("url", "checksum"),
    [
        ("file:///etc/passwd", "a" * 64),
        ("https://user:pass@host/x", "a" * 64),
        ("https://host/" + "x" * 2_048, "a" * 64),
        ("https://host/x", "a" * 63),
        ("https://host/x", "g" * 64),
        ("https://host/x", "../" + "a" * 61),
        ("https://host/x", ""),
        ("https://host/x", 7),
        (7, "a" * 64),
        (None, "a" * 64),
    ],
)
def test_a_solver_that_cannot_be_one_is_refused_and_nothing_is_made(app: App, url: Any, checksum: Any) -> None:
    said = {name: value for name, value in (("solver_url", url), ("solver_checksum", checksum)) if value is not None}
    with pytest.raises(BadInput):
        app.enqueue("solve", **said)
    assert run_sync(app.verbs.runs()).runs == []


def test_it_is_kept_with_the_run(app: App, files: Files) -> None:
    solver = files.offer(HELLO)
    assert asked(app, solver).refresh().policy.solver == Solver(solver.url, solver.checksum)
    assert asked(app, Solver(solver.url)).refresh().policy.solver == Solver(solver.url, None)


# Without a checksum


def test_a_program_without_a_checksum_is_refused_once_and_the_reason_names_the_setting(app: App, cache: Path, files: Files) -> None:
    run = solved(app, cache, Solver(files.offer(HELLO).url), max_attempts=3)
    assert (failure(run).code, run.attempt) == ("solver_unchecked", 1)
    assert "solver_unchecked = true" in failure(run).message
    assert files.asked == []  # nothing is even fetched


def test_a_worker_that_is_set_to_executes_it_and_fetches_it_for_every_attempt(cache: Path, files: Files, place: str) -> None:
    files.files["/solver"] = lambda number: HELLO if number == 1 else SHELL + b"echo changed\n"
    unchecked = loopback(cache, unchecked=True)
    solver = Solver(f"{files.address}/solver")
    assert [result(ran(unchecked, solver)), result(ran(unchecked, solver))] == ["hello", "changed"]
    assert os.listdir(cache) == []


def test_a_program_in_the_cache_is_not_taken_for_one_without_a_checksum(cache: Path, files: Files) -> None:
    unchecked, solver = loopback(cache, unchecked=True), files.offer(HELLO)
    assert result(ran(unchecked, solver)) == "hello"
    files.files["/solver"] = 404
    assert error(ran(unchecked, Solver(solver.url))).message == "download failed: HTTP 404"
    assert result(ran(unchecked, solver)) == "hello"


def test_the_allowed_hosts_are_checked_without_a_checksum_too(cache: Path, files: Files) -> None:
    files.offer(HELLO)
    strict = Solvers(Egress(plain_http=True), cache=cache, unchecked=True)
    assert error(ran(strict, Solver(f"{files.address}/solver"))).code == "egress_refused"


def test_one_with_a_checksum_is_verified_also_where_others_need_none(cache: Path, files: Files) -> None:
    files.offer(HELLO)
    report = ran(loopback(cache, unchecked=True), Solver(f"{files.address}/solver", sha(b"other")))
    assert error(report).code == "solver_checksum_mismatch"


@pytest.mark.parametrize("unchecked", [None, False, True])
def test_the_setting_reaches_the_worker(cache: Path, unchecked: bool | None) -> None:
    solvers = solvers_of(Settings(solvers=True, solver_unchecked=unchecked, solver_cache=str(cache)))
    assert solvers is not None
    report = ran(solvers, Solver("https://127.0.0.1:1/solver"))
    assert error(report).code == ("egress_refused" if unchecked else "solver_unchecked")


# What is executed is what was verified


def test_a_server_that_changes_its_mind_gains_nothing(cache: Path, files: Files, tmp_path: Path, place: str) -> None:
    trace = tmp_path / "executed"
    evil = SHELL + f"touch {trace}\n".encode()
    solver = files.offer(HELLO)
    files.files["/solver"] = lambda number: HELLO if number % 2 == 0 else evil
    assert error(ran(loopback(cache), solver)).code == "solver_checksum_mismatch"
    assert result(ran(loopback(cache), solver)) == "hello"
    os.unlink(cache / solver.checksum)
    assert error(ran(loopback(cache), solver)).code == "solver_checksum_mismatch"
    assert not trace.exists()


@pytest.mark.parametrize("content", [b"", HELLO[:-1], HELLO + b"\n", b"#!/bin/sh\necho evil\n"], ids=["empty", "short", "long", "other"])
def test_a_cached_file_that_is_not_the_program_is_fetched_anew(cache: Path, files: Files, content: bytes, place: str) -> None:
    solver = files.offer(HELLO)
    cache.mkdir(mode=0o700)
    (cache / solver.checksum).write_bytes(content)
    assert result(ran(loopback(cache), solver)) == "hello"
    assert (cache / solver.checksum).read_bytes() == HELLO
    assert files.asked == ["/solver"]


@long
def test_a_program_that_is_swapped_between_check_and_execution_never_runs(cache: Path, files: Files, tmp_path: Path) -> None:
    """A thread replaces and rewrites the cached file all the time, while it is read, hashed, sealed and executed."""
    trace = tmp_path / "executed"
    evil = SHELL + f"touch {trace}; echo evil\n".encode()
    solver, over, swaps = files.offer(HELLO), threading.Event(), [0]
    shared = loopback(cache)
    file = cache / solver.checksum

    def swap() -> None:
        while not over.is_set():
            swaps[0] += 1
            match swaps[0] % 4:
                case 0:
                    (tmp_path / "new").write_bytes(evil)
                    os.replace(tmp_path / "new", file)
                case 1:
                    file.write_bytes(HELLO)
                case 2:
                    file.write_bytes(evil)
                case 3:
                    (tmp_path / "new").write_bytes(HELLO)
                    os.replace(tmp_path / "new", file)

    def executable() -> bytes:
        """What would be executed. Most rounds end here, because a launch takes long and is not what is raced."""
        image = Image(str(tmp_path))
        try:
            shared.fill(image, solver, threading.Event())
            image.seal()
            return b"".join(image.chunks())
        finally:
            image.close()

    attacker = threading.Thread(target=swap, daemon=True)
    attacker.start()
    try:
        for number in range(ROUNDS):
            assert executable() == HELLO
            if number % 20 == 0:
                assert result(ran(shared, solver)) == "hello"
    finally:
        over.set()
        attacker.join()
    assert not trace.exists()
    assert swaps[0] > ROUNDS  # it did race


def test_a_swap_after_the_check_and_before_the_execution_changes_nothing(
    cache: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The narrowest moment, every time: the cached file is replaced when it has been verified and nothing has been executed."""
    trace = tmp_path / "executed"
    evil = SHELL + f"touch {trace}; echo evil\n".encode()
    solver, shared, seal = files.offer(HELLO), loopback(cache), Image.seal

    def swapped(image: Image) -> tuple[int, ...]:
        (cache / solver.checksum).write_bytes(evil)
        return seal(image)

    monkeypatch.setattr(Image, "seal", swapped)
    for _ in range(20):
        assert result(ran(shared, solver)) == "hello"
    assert not trace.exists()


def test_a_sealed_program_cannot_be_written_to(tmp_path: Path) -> None:
    image = Image(str(tmp_path))
    image.write(HELLO)
    [fd] = image.seal()
    for change in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 0), lambda: image.write(b"x"), image.clear):
        with pytest.raises(PermissionError):
            change()
    with open(image.path, "r+b", buffering=0) as another, pytest.raises(PermissionError):
        another.write(b"x")
    image.close()


@pytest.mark.parametrize("where", [3, len(HELLO)])
def test_a_program_that_is_changed_before_it_is_sealed_is_noticed(tmp_path: Path, where: int, place: str) -> None:
    """By another process of the same user, which can open what this one has open."""
    image = Image(str(tmp_path))
    image.write(HELLO)
    with open(f"/proc/{os.getpid()}/fd/{image.fd}", "r+b", buffering=0) as other:
        os.pwrite(other.fileno(), b"!", where)
        with pytest.raises(Mismatch):
            image.seal()
    image.close()


def test_a_solver_cannot_change_itself_for_the_next(cache: Path, files: Files) -> None:
    """It is told where it is, and tries to write there; the next run of it is the same program."""
    program = (
        PYTHON
        + b"import sys\ntry:\n    open(sys.argv[0], 'r+b', buffering=0).write(b'evil')\nexcept OSError as error:\n    print('refused')\n"
    )
    solver = files.offer(program)
    for _ in range(2):
        assert result(ran(loopback(cache), solver)) == "refused"


@pytest.mark.parametrize("kind", ["binary", "script", "env"])
def test_programs_of_every_kind_run(cache: Path, files: Files, kind: str, place: str) -> None:
    program = {"binary": Path("/bin/echo").read_bytes(), "script": SHELL + b'echo "$@"\n', "env": b'#!/usr/bin/env sh\necho "$@"\n'}[kind]
    assert result(ran(loopback(cache), files.offer(program), '{"a":1}')) == '--params {"a":1}'


# The cache


def test_the_cache_is_for_its_owner_only(cache: Path, files: Files) -> None:
    solver = files.offer(HELLO)
    ran(loopback(cache), solver)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE((cache / solver.checksum).stat().st_mode) == 0o600
    assert os.listdir(cache) == [solver.checksum]


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707, 0o711])
def test_a_cache_that_others_can_open_is_refused(cache: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(BadInput, match="open to others"):
        loopback(cache)


def test_a_cache_that_is_a_link_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    for name in ("link", "file", "file/below"):
        with pytest.raises(BadInput, match="cannot be used"):
            loopback(tmp_path / name)


@pytest.mark.parametrize(
    "checksum", ["../" * 21 + "x", "/etc/passwd", "..", ".", "", "a" * 63, "A" * 63 + "/", "a" * 64 + "\n", "lock-a", "\0" * 64, "é" * 64]
)
def test_no_name_but_a_checksum_touches_the_cache(cache: Path, files: Files, checksum: str, tmp_path: Path) -> None:
    """The engine refuses such a run already; a worker does not rely on it."""
    files.offer(HELLO)
    before = sorted(tmp_path.rglob("*"))
    report = ran(Solvers(Egress(allow=["127.0.0.0/8"], plain_http=True), cache=cache), Solver(f"{files.address}/solver", checksum))
    assert error(report).code == "solver_checksum_mismatch"
    assert sorted(tmp_path.rglob("*")) == sorted([*before, cache])
    assert files.asked == []


def _link(file: Path, target: Path) -> None:
    file.symlink_to(target)


def _hard_link(file: Path, target: Path) -> None:
    file.hardlink_to(target)


def _pipe(file: Path, target: Path) -> None:
    os.mkfifo(file)


def _dangling(file: Path, target: Path) -> None:
    file.symlink_to(target.with_name("nothing"))


def _folder(file: Path, target: Path) -> None:
    file.mkdir()


@pytest.mark.parametrize("attack", [_link, _hard_link, _pipe, _dangling, _folder])
@pytest.mark.parametrize("where", ["", ".part"])
def test_what_lies_in_the_cache_in_place_of_a_program_harms_nobody(
    cache: Path, files: Files, tmp_path: Path, attack: Callable[[Path, Path], None], where: str
) -> None:
    solver = files.offer(HELLO)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    cache.mkdir(mode=0o700)
    attack(cache / f"{solver.checksum}{where}", victim)
    assert result(ran(loopback(cache), solver)) == "hello"
    assert victim.read_text() == "precious"
    assert not victim.with_name("nothing").exists()
    assert len(files.asked) == 1
    if attack is not _folder:  # which is in the way, and is left there
        assert (cache / solver.checksum).read_bytes() == HELLO
        assert not (cache / solver.checksum).is_symlink()


def test_a_link_to_the_right_program_is_not_followed(cache: Path, files: Files, tmp_path: Path) -> None:
    solver = files.offer(HELLO)
    (tmp_path / "elsewhere").write_bytes(HELLO)
    cache.mkdir(mode=0o700)
    (cache / solver.checksum).symlink_to(tmp_path / "elsewhere")
    assert result(ran(loopback(cache), solver)) == "hello"
    assert files.asked == ["/solver"]
    assert not (cache / solver.checksum).is_symlink()


def test_a_cache_that_cannot_be_written_costs_only_time(cache: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    solver = files.offer(HELLO)
    for _ in range(2):
        assert result(ran(loopback(cache), solver)) == "hello"
    assert files.asked == ["/solver"] * 2


def test_a_full_cache_forgets_what_was_not_used_for_longest(cache: Path, files: Files) -> None:
    programs = [HELLO + b"#" * 1_000 + str(number).encode() for number in range(4)]
    first, second, third, fourth = [files.offer(program, f"/{number}") for number, program in enumerate(programs)]
    room = loopback(cache, room=3 * len(programs[0]))
    for number, solver in enumerate((first, second, third)):
        ran(room, solver)
        os.utime(cache / solver.checksum, (number, number))
    ran(room, first)  # used again
    ran(room, fourth)
    kept = {name for name in os.listdir(cache) if len(name) == 64}
    assert kept == {solver.checksum for solver in (first, third, fourth)}


def test_many_at_once_share_one_download(cache: Path, files: Files) -> None:
    gate = Gate()

    def slow(number: int) -> bytes:
        gate.block()
        return HELLO

    solver = files.offer(HELLO)
    files.files["/solver"] = slow
    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(ran, loopback(cache), solver) for _ in range(6)]
        gate.reached()
        gate.open()
        assert [result(done.result()) for done in waiting] == ["hello"] * 6
    assert files.asked == ["/solver"]


FETCH = """
import sys, threading
from windlass.egress import Egress
from windlass.model import Solver
from windlass.worker.solvers import Image, Solvers
image = Image(sys.argv[4])
solvers = Solvers(Egress(allow=["127.0.0.0/8"], plain_http=True), cache=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
solvers.fill(image, Solver(sys.argv[2], sys.argv[3]), threading.Event())
print(image.checksum, flush=True)
"""


def test_two_processes_on_one_cache_share_one_download(cache: Path, files: Files, tmp_path: Path) -> None:
    solver = files.offer(HELLO + bytes(2_000_000))
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", FETCH, str(cache), solver.url, solver.checksum, str(tmp_path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(3)
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        said = [child.communicate("\n")[0].strip() for child in children]
    assert said == [solver.checksum] * 3
    assert files.asked == ["/solver"]


def test_a_lock_whose_holder_died_is_free(cache: Path, files: Files, tmp_path: Path) -> None:
    gate, solver = Gate(), files.offer(HELLO)

    def slow(number: int) -> bytes:
        if number == 1:
            gate.block()
        return HELLO

    files.files["/solver"] = slow
    with subprocess.Popen(
        [sys.executable, "-c", FETCH, str(cache), solver.url, solver.checksum, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        gate.reached()
        child.kill()
        child.communicate()
    try:
        assert result(ran(loopback(cache), solver)) == "hello"
    finally:
        gate.open()


def test_a_slow_download_holds_up_no_other_program(cache: Path, files: Files) -> None:
    gate, other = Gate(), files.offer(HELLO)
    slow = next(made for n in range(1_000) if (made := files.offer(HELLO + b"#%d" % n, "/slow")).checksum[0] == other.checksum[0])

    def serve(number: int) -> bytes:
        gate.block()
        return b""

    files.files["/slow"] = serve
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ran, loopback(cache), slow)
        gate.reached()
        assert result(ran(loopback(cache), other)) == "hello"
        gate.open()
        waiting.result()


def test_one_at_a_time_has_the_lock_of_a_program(tmp_path: Path) -> None:
    inside, limit, folder = Counter[str](), list[int](), os.open(tmp_path, os.O_RDONLY)

    def enter(_: int) -> None:
        with solvers._locked(folder, "a" * 64, threading.Event()):
            inside["now"] += 1
            limit.append(inside["now"])
            time.sleep(0.001)
            inside["now"] -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(100)))
    os.close(folder)
    assert (set(limit), len(limit), os.listdir(tmp_path)) == ({1}, 100, [])


def test_what_workers_that_were_killed_have_begun_is_removed(cache: Path, files: Files) -> None:
    loopback(cache)
    left, held, lock, other = (cache / name for name in ("a" * 64 + ".part", "b" * 64 + ".part", "b" * 64 + ".lock", "notes.part"))
    for path in (left, held, lock, other):
        path.write_bytes(b"#!/bin/sh")
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        loopback(cache)
        assert sorted(os.listdir(cache)) == sorted([held.name, lock.name, other.name])
    assert result(ran(loopback(cache), solver := files.offer(HELLO))) == "hello"
    assert sorted(os.listdir(cache)) == sorted([solver.checksum, other.name])


# Its place


def test_nothing_of_the_worker_leaks_into_a_solver(
    app: App, cache: Path, files: Files, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("SECRET", "of the worker")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    program = PYTHON + (
        b"import json, os, stat\n"
        b"fds = {n: os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')}\n"
        b"said = {'env': dict(os.environ), 'cwd': os.getcwd(), 'here': os.listdir('.'), 'fds': fds}\n"
        b"print(json.dumps(said | {'group': os.getpgrp(), 'pid': os.getpid()}))\n"
    )
    open_file = (cache.parent / "open").open("w")
    os.set_inheritable(open_file.fileno(), True)
    with open_file:
        run = solved(app, cache, files.offer(program), {"a": 1})
    said = output(run)
    assert said["env"].keys() - {"LC_CTYPE"} == {
        "PATH", "HOME", "TMPDIR", "LANG", "JOB_ID", "JOB_TYPE", "JOB_PARAMS", "WINDLASS_RUN_ID", "WINDLASS_SCHEDULED_FOR",
        "WINDLASS_JOB", "WINDLASS_ATTEMPT",
    }  # fmt: skip
    assert said["env"]["WINDLASS_RUN_ID"] == run.id
    assert said["here"] == []
    assert said["cwd"] == said["env"]["HOME"] == said["env"]["TMPDIR"]
    assert not os.path.exists(said["cwd"])
    others = [target for number, target in said["fds"].items() if int(number) > 2]
    assert all("memfd:solver" in target or target.endswith("/solver") for target in others)
    assert all("pipe:" in said["fds"][number] for number in "012")
    assert said["group"] == said["pid"]


STATUS = PYTHON + (
    b"import json, resource\n"
    b"status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
    b"limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)]\n"
    b"print(json.dumps([int(status['NoNewPrivs']), *limits]))\n"
)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has no_new_privs")


@on_linux
def test_a_solver_gains_no_rights_and_has_limits(app: App, cache: Path, files: Files, place: str) -> None:
    solver = files.offer(STATUS)
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    default = 16_384 if hard == resource.RLIM_INFINITY else min(16_384, hard)
    assert output(solved(app, cache, solver)) == [1, default, 8 * 2**30]
    limits = {"processes": 300, "file_size": 1}
    assert output(solved(app, cache, solver, limits=limits)) == [1, 300, 2**20]
    limits = {"processes": 0, "file_size": 0}
    assert output(solved(app, cache, solver, limits=limits)) == [1, *(resource.getrlimit(kind)[0] for kind in KINDS)]


def test_a_solver_that_writes_too_large_a_file_is_killed(cache: Path, files: Files) -> None:
    solver = files.offer(SHELL + b"head -c 2000000 /dev/zero > much; ls -s much >&2; exit 0\n")
    assert result(ran(loopback(cache, file_size=3), solver)) is None
    report = ran(loopback(cache, file_size=1), files.offer(SHELL + b"exec head -c 2000000 /dev/zero > much\n"))
    assert error(report).message == "The process was killed by SIGXFSZ."


AS_NOBODY = """
import ctypes, os, resource, sys
from windlass.worker.launch import confine
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""


def as_nobody(code: str, *arguments: str) -> str:
    """What a program prints, as an ordinary user: root has fewer limits."""
    command = [sys.executable, "-c", AS_NOBODY + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@on_linux
def test_a_program_that_may_have_no_more_processes_starts_none() -> None:
    code = "confine(1, 0)\ntry:\n    os.fork()\nexcept BlockingIOError:\n    print('refused')"
    assert as_nobody(code) == "refused"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program that has its rights")
@on_linux
def test_a_setuid_program_gives_a_solver_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        shutil.copy("/usr/bin/id", program := f"{folder}/id")
        os.chmod(program, 0o4755)
        become = "os.execv(sys.argv[1], [sys.argv[1], '-u'])"
        assert as_nobody(become, program) == "0"
        assert as_nobody(f"confine(0, 0); {become}", program) == "65534"


def test_where_nothing_keeps_a_program_from_gaining_rights_it_is_said_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(solvers, "CONFINES", False)
    solvers._warn_once.cache_clear()
    for _ in range(2):
        loopback(cache)
    [record] = caplog.records
    assert "no_new_privs" in record.getMessage()


def test_long_params_come_on_standard_input(app: App, cache: Path, files: Files) -> None:
    program = (
        PYTHON + b"import json, os, sys\nprint(json.dumps([sys.argv[1:], 'JOB_PARAMS' in os.environ, len(json.load(sys.stdin)['text'])]))\n"
    )
    run = solved(app, cache, files.offer(program), {"text": "x" * 200_000})
    assert output(run) == [["--params", "-"], False, 200_000]


@pytest.mark.parametrize("size", [99_980, 99_989, 99_990])
def test_params_up_to_the_limit_come_as_an_argument(cache: Path, files: Files, size: int) -> None:
    payload = json.dumps({"text": "x" * (size - len('{"text":"') - 2)}, separators=(",", ":"))
    program = PYTHON + b"import json, sys\nprint(json.dumps([len(sys.argv[2]), len(sys.stdin.read())]))\n"
    assert len(payload) == size
    assert result(ran(loopback(cache), files.offer(program), payload)) == [size, size]


def test_params_cannot_become_anything_else(cache: Path, files: Files) -> None:
    payload = json.dumps({"a": "$(touch /tmp/x); `id` {payload} --params %s \n '\""})
    program = PYTHON + b"import json, sys\nprint(json.dumps(sys.argv[1:]))\n"
    assert result(ran(loopback(cache), files.offer(program), payload)) == ["--params", payload]


# How it ends


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        (b"echo '{\"a\": [1, 2.5]}'", {"a": [1, 2.5]}),
        (b"echo 42", 42),
        (b"echo a; echo b", "a\nb"),
        (b"printf ' x '", " x "),
        (b"true", None),
        (b"printf '{\"a\": '", '{"a": '),
    ],
)
def test_standard_output_is_the_result(cache: Path, files: Files, script: bytes, kept: Any) -> None:
    assert result(ran(loopback(cache), files.offer(SHELL + script + b"\n"))) == kept


def test_a_bad_exit_is_told_with_the_beginning_of_standard_error(app: App, cache: Path, files: Files) -> None:
    program = SHELL + b"echo first line >&2; i=0; while [ $i -lt 100 ]; do echo 0123456789 >&2; i=$((i+1)); done; echo out; exit 3\n"
    run = solved(app, cache, files.offer(program))
    assert failure(run).code == "solver_failed"
    said = "first line\n" + "0123456789\n" * 100
    assert failure(run).message == f"exit code 3: {said[:500].strip()}"
    assert "0123456789" in (failure(run).detail or "")


def test_a_file_that_is_no_program_fails(cache: Path, files: Files, place: str) -> None:
    assert error(ran(loopback(cache), files.offer(b"\x7fELF nonsense"))).message.startswith("exit code 126: windlass: cannot start")


def test_standard_error_becomes_the_log(app: App, cache: Path, files: Files) -> None:
    run = solved(app, cache, files.offer(SHELL + b"echo working >&2\n"))
    assert [line.text for line in run_sync(app.verbs.lines(run.id))] == ["working"]


def test_output_without_end_is_cut_off(cache: Path, files: Files) -> None:
    limit = Limits().output
    failed = error(ran(loopback(cache), files.offer(SHELL + b"yes\n")))
    assert (failed.code, f"{limit:,}" in failed.message) == ("bad_output", True)


def test_a_solver_gets_no_more_memory_than_it_may_have(cache: Path, files: Files, place: str) -> None:
    program = PYTHON + b"try:\n    data = bytearray(400 << 20)\n    print('got it')\nexcept MemoryError:\n    print('refused')\n"
    solver = files.offer(program)
    assert result(ran(loopback(cache, memory=200), solver)) == "refused"
    assert result(ran(loopback(cache, memory=0), solver)) == "got it"


SLEEPS = PYTHON + (
    b"import os, subprocess, sys, time\n"
    b"child = subprocess.Popen(['sleep', '600'])\n"
    b"print('pids', os.getpid(), child.pid, file=sys.stderr, flush=True)\n"
    b"signal = __import__('signal'); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    b"time.sleep(600)\n"
)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_of(app: App, run_id: str) -> list[int]:
    """The processes of a solver, once it has said them in its log."""
    lines = until(lambda: run_sync(app.verbs.lines(run_id)) or None)
    return [int(word) for word in lines[0].text.split()[1:]]


def test_cancelling_kills_the_whole_group(app: App, cache: Path, files: Files) -> None:
    handle = asked(app, files.offer(SLEEPS), grace=1)
    with working(app, solvers=loopback(cache)):
        pids = pids_of(app, handle.id)
        assert all(map(alive, pids))
        handle.cancel()
        assert ended(handle).state is State.CANCELLED
        until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize(("limit", "code"), [("timeout", "timeout"), ("max_runtime", "max_runtime_exceeded")])
def test_a_solver_that_takes_too_long_is_killed(app: App, cache: Path, files: Files, limit: str, code: str) -> None:
    handle = asked(app, files.offer(SLEEPS), grace=1, **{limit: 3})
    with working(app, solvers=loopback(cache)):
        pids = pids_of(app, handle.id)
        assert failure(ended(handle)).code == code
        until(lambda: not any(map(alive, pids)))


def test_a_worker_that_is_killed_takes_its_solvers_along(tmp_path: Path, cache: Path, files: Files) -> None:
    store = tmp_path / "solve.db"
    app = App(str(store))
    [made] = run_sync(app.verbs.create([NewRun("solve", None, Options(solver=files.offer(SLEEPS)))], undefined="wait"))
    (tmp_path / "empty.py").write_text("from windlass import App\napp = App()\n")
    command = [sys.executable, "-m", "windlass", "work", "empty:app", "--store", str(store), "--solvers", "--solver-allow", "127.0.0.0/8"]
    command += [
        "--solver-plain-http",
        "--solver-cache",
        str(cache),
        "--solver-memory",
        "512MiB",
        "--solver-hosts",
        "127.0.0.1,files.example",
    ]
    with subprocess.Popen(command, cwd=tmp_path) as worker:
        try:
            pids = pids_of(app, made.id)
            assert all(map(alive, pids))
        finally:
            worker.send_signal(signal.SIGKILL)
    until(lambda: not any(map(alive, pids)))


def test_cancelling_stops_a_download(app: App, cache: Path, files: Files) -> None:
    gate, solver = Gate(), files.offer(HELLO)

    def slow(number: int) -> bytes:
        gate.block()
        return HELLO

    files.files["/solver"] = slow
    handle = asked(app, solver, grace=600)  # so that only the worker can end it
    try:
        with working(app, solvers=loopback(cache)):
            gate.reached()
            in_state(handle, State.RUNNING)
            handle.cancel()
            assert ended(handle).state is State.CANCELLED
    finally:
        gate.open()


@pytest.mark.parametrize("how", ["ask", "kill"])
def test_a_download_ends_as_soon_as_it_is_stopped(cache: Path, files: Files, how: str) -> None:
    gate, solver = Gate(), files.offer(HELLO)

    def slow(number: int) -> bytes:
        gate.block()
        return HELLO

    files.files["/solver"] = slow
    executor = attempt(loopback(cache), solver)
    with ThreadPoolExecutor(1) as pool:
        downloading = pool.submit(executor.run)
        gate.reached()
        try:
            if how == "ask":
                executor.ask_to_stop("cancel")
            else:
                assert executor.kill()
            assert error(downloading.result(DEADLINE / 2)).code == "Stopped"  # the server still holds it back
        finally:
            gate.open()
    executor.watchdog.close()


def test_waiting_for_the_download_of_another_can_be_stopped(cache: Path, files: Files) -> None:
    gate, solver = Gate(), files.offer(HELLO)

    def slow(number: int) -> bytes:
        gate.block()
        return HELLO

    files.files["/solver"] = slow
    first, second = attempt(loopback(cache), solver), attempt(loopback(cache), solver)
    with ThreadPoolExecutor(2) as pool:
        downloading = pool.submit(first.run)
        gate.reached()
        waiting = pool.submit(second.run)
        second.ask_to_stop("cancel")
        assert error(waiting.result()).code == "Stopped"
        gate.open()
        assert result(downloading.result()) == "hello"
    for executor in (first, second):
        executor.watchdog.close()


def test_one_that_is_stopped_before_it_begins_executes_nothing(cache: Path, files: Files) -> None:
    executor = attempt(loopback(cache), files.offer(HELLO))
    assert executor.kill()
    assert error(executor.run()).code == "Stopped"


@contextmanager
def descriptors_stay() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


def test_nothing_stays_behind(cache: Path, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    good, bad = files.offer(SHELL + b"echo left > behind; echo hello\n", "/good"), Solver(f"{files.address}/good", sha(b"other"))
    shared = loopback(cache)
    ran(shared, good)
    with descriptors_stay():
        assert result(ran(shared, good)) == "hello"
        assert error(ran(shared, bad)).code == "solver_checksum_mismatch"
        assert error(ran(shared, Solver(f"{files.address}/missing", sha(b"missing")))).message == "download failed: HTTP 404"
    assert os.listdir(temporary) == []


def test_the_jobs_own_code_runs_where_there_is_no_solver(app: App, cache: Path) -> None:
    handle = app.enqueue("solve")
    with working(app, solvers=loopback(cache)):
        assert output(ended(handle)) == "the job's own code"


def test_a_worker_without_solvers_that_is_handed_such_a_run_does_not_take_it_for_its_own(app: App, files: Files) -> None:
    def pretend(worker: Worker) -> None:
        worker.runtime.info = replace(worker.info, tags=("solver",), programs=True)

    handle = asked(app, files.offer(HELLO))
    with working(app, prepare=pretend):
        assert failure(ended(handle)).code == "unknown_job"
    assert files.asked == []
