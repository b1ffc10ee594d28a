"""What runs handlers: threads, processes and commands, each on its own and without a worker; and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from tests.workers import ended, working
from windlass import App, Context, State
from windlass import Fail as FailNow
from windlass import Skip as SkipNow
from windlass import Snooze as SnoozeNow
from windlass.app.signatures import Signature
from windlass.clock import SystemClock
from windlass.machine import Fail, Refuse, Report, Skip, Snooze, Succeed
from windlass.model import Failure, Limits
from windlass.worker import Handler, Stopped, current
from windlass.worker.commands import CommandExecutor
from windlass.worker.context import Call, Nowhere
from windlass.worker.executors import Executor, ThreadExecutor
from windlass.worker.handlers import Place
from windlass.worker.messages import BeginRequest
from windlass.worker.process_pool import ChildProcess, ProcessExecutor, ProcessPool

PATIENCE = 30.0
OUTPUT = Limits().output
WHEN = "2026-01-01T03:00:00.250+00:00"
app = App(":memory:")


class RecordingSink(Nowhere):
    """Keeps the output of a handler."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.updates: list[Any] = []
        self.beats = 0

    def line(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, text: str) -> None:
        self.updates.append(json.loads(text))

    def beat(self) -> None:
        self.beats += 1


# Waiting, and what is left behind


def until(holds: Callable[[], Any], what: str = "it") -> None:
    """Wait until something holds; a generous deadline is all that is said about time."""
    clock = SystemClock()
    end = clock.monotonic() + PATIENCE * 1000
    while not holds():
        assert clock.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def ran(executor: Executor) -> Report:
    """What an attempt reports; fails, and kills it, when it does not end."""
    answers: SimpleQueue[Report | BaseException] = SimpleQueue()

    def run() -> None:
        try:
            answers.put(executor.run())
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=run, name="attempt", daemon=True).start()
    try:
        answer = answers.get(timeout=PATIENCE)
    except Empty:
        executor.kill()
        pytest.fail("the attempt does not end")
    if isinstance(answer, BaseException):
        raise answer
    return answer


def started(executor: Executor) -> SimpleQueue[Report]:
    """Begin an attempt on a thread; its report comes through the queue."""
    reports: SimpleQueue[Report] = SimpleQueue()
    threading.Thread(target=lambda: reports.put(executor.run()), name="attempt", daemon=True).start()
    return reports


def output(report: Report) -> Any:
    """What a successful attempt returned."""
    assert isinstance(report, Succeed), report
    return None if report.output is None else json.loads(report.output)


def error(report: Report) -> Failure:
    assert isinstance(report, Fail), report
    return report.error


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descriptors() -> dict[int, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[int(fd)] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the one that lists
            continue
    return found


def children() -> set[int]:
    """The processes that this one has started and not reaped."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        except FileNotFoundError:  # a thread that has just ended
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """No descriptor, thread or process is left behind by a test."""
    if "postgres" in getattr(request.node, "callspec", request).__dict__.get("params", {}).values():
        request.getfixturevalue("postgres_home")  # stays until the last test
    files, threads, processes = descriptors(), set(threading.enumerate()), children()
    yield
    until(lambda: set(threading.enumerate()) <= threads, "threads to end")
    until(lambda: children() <= processes, "processes to be reaped")
    until(lambda: descriptors().items() <= files.items(), "descriptors to be closed")


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    pool = ProcessPool()
    yield pool
    pool.close()


def call(payload: Any = None, **said: Any) -> Call:
    fields = {"run": "run-1", "job": "job", "attempt": 1, "token": "token-1", "max_attempts": 3, "failures": 0}
    return Call(**{**fields, **said}, scheduled_for=1_767_236_400_250, payload=json.dumps({} if payload is None else payload))


# Threads


def in_thread(function: Callable[[Context], Any], sink: RecordingSink, **how: Any) -> ThreadExecutor:
    return ThreadExecutor(Handler("job", "thread", function, **how), Context(call(), sink))


def test_a_thread_returns_what_its_function_returns(sink: RecordingSink) -> None:
    assert output(ran(in_thread(lambda context: {"run": context.run}, sink))) == {"run": "run-1"}
    assert ran(in_thread(lambda context: None, sink)) == Succeed()


def test_what_a_function_raises_is_the_error_with_its_class_and_place(sink: RecordingSink) -> None:
    failure = error(ran(in_thread(lambda context: dict[str, int]()["missing"], sink)))
    assert (failure.code, failure.message) == ("KeyError", "'missing'")
    assert "test_executors.py" in (failure.detail or "")


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()], ids=repr)
def test_no_exception_of_a_function_gets_past_its_attempt(raised: BaseException, sink: RecordingSink) -> None:
    def function(context: Context) -> None:
        raise raised

    assert error(ran(in_thread(function, sink))).code == type(raised).__name__


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even its text")


def test_an_error_without_a_text_is_still_an_error(sink: RecordingSink) -> None:
    def function(context: Context) -> None:
        raise Unspeakable

    assert "Unspeakable" in error(ran(in_thread(function, sink))).code


def test_snooze_and_fail_can_be_raised_or_returned(sink: RecordingSink) -> None:
    def function(context: Context) -> None:
        raise SnoozeNow(1.5)

    assert ran(in_thread(function, sink)) == Snooze(delay=1_500)
    assert ran(in_thread(lambda context: SnoozeNow(0.25), sink)) == Snooze(delay=250)
    report = ran(in_thread(lambda context: FailNow("no", retry=False, code="never", delay=2), sink))
    assert report == Fail(error=Failure("never", "no"), retry=False, delay=2_000)


def test_a_skip_can_be_raised_or_returned_and_its_reason_fits(sink: RecordingSink) -> None:
    def function(context: Context) -> None:
        raise SkipNow("duplicate")

    assert ran(in_thread(function, sink)) == Skip(reason="duplicate")
    for reason, kept in (("done by hand", "done by hand"), ("", "skipped"), ("x" * 5_000, "x" * 1_000), (7, "7")):
        assert ran(in_thread(lambda context, reason=reason: SkipNow(reason), sink)) == Skip(reason=kept)  # type: ignore[misc]


def test_a_backoff_function_names_the_delay_and_a_broken_one_does_not_hide_the_error(sink: RecordingSink) -> None:
    def function(context: Context) -> None:
        raise ValueError("x")

    good = ran(in_thread(function, sink, backoff=lambda attempt, error: attempt + 0.5))
    broken = ran(in_thread(function, sink, backoff=lambda attempt, error: 1 / 0))
    assert isinstance(good, Fail)
    assert isinstance(broken, Fail)
    assert (good.delay, good.error.code) == (1_500, "ValueError")
    assert (broken.delay, broken.error.code) == (None, "ValueError")


def test_what_cannot_be_kept_is_bad_output(sink: RecordingSink) -> None:
    for result in (object(), {1, 2}, float("nan"), "\0", "\ud800", 2**64, "x" * OUTPUT, {"a": b"bytes"}):
        assert error(ran(in_thread(lambda context, result=result: result, sink))).code == "bad_output", result  # type: ignore[misc]
    assert output(ran(in_thread(lambda context: "x" * (OUTPUT - 2), sink))) == "x" * (OUTPUT - 2)


def test_a_pause_in_a_thread_ends_when_it_is_asked_to_stop(sink: RecordingSink) -> None:
    pausing, times = threading.Event(), 0

    def function(context: Context) -> None:
        nonlocal times
        context.pause(0)
        pausing.set()
        for _ in range(2):  # the second time at once
            try:
                context.pause(PATIENCE * 2)
            except Stopped:
                times += 1
        context.pause(PATIENCE * 2)

    executor = in_thread(function, sink)
    reports = started(executor)
    assert pausing.wait(PATIENCE)
    executor.ask_to_stop("cancel")
    failure = error(reports.get(timeout=PATIENCE))
    assert (failure.code, failure.message, times) == ("Stopped", "cancel", 2)


def test_check_raises_in_a_thread_that_should_stop(sink: RecordingSink) -> None:
    begun, asked = threading.Event(), threading.Event()

    def function(context: Context) -> None:
        context.check()
        begun.set()
        asked.wait(PATIENCE)
        assert context.cancelled
        context.check()

    executor = in_thread(function, sink)
    reports = started(executor)
    assert begun.wait(PATIENCE)
    assert not executor.kill()  # a thread cannot be forced
    executor.ask_to_stop("timeout")
    asked.set()
    failure = error(reports.get(timeout=PATIENCE))
    assert (failure.code, failure.message) == (Stopped.__name__, "timeout")


def test_the_context_is_found_from_below_a_function_and_not_outside(sink: RecordingSink) -> None:
    def below() -> list[Any]:
        context = current()
        context.progress(0.5, "half")
        context.progress(7)
        context.beat()
        return [context.run, context.job, context.attempt, context.token, context.tries_left, when(context)]

    assert output(ran(in_thread(lambda context: below(), sink))) == ["run-1", "job", 1, "token-1", 2, WHEN]
    assert sink.updates == [{"fraction": 0.5, "message": "half"}, {"fraction": 1.0}]
    assert sink.beats == 1
    with pytest.raises(LookupError):
        current()


def when(context: Context) -> str:
    return context.scheduled_for.isoformat(timespec="milliseconds")


# Commands


def command(*argv: str, payload: Any = None, sink: RecordingSink | None = None, **how: Any) -> CommandExecutor:
    sink, attempt = sink or RecordingSink(), call(payload)
    return CommandExecutor(Handler("job", "command", argv=argv, **how), Context(attempt, sink), attempt, sink)


def python(script: str, **how: Any) -> CommandExecutor:
    return command(sys.executable, "-I", "-S", "-c", script, **how)


def shell(script: str, **how: Any) -> CommandExecutor:
    return command("/bin/sh", "-c", script, **how)


def test_a_command_reads_its_payload_and_writes_its_result() -> None:
    payload = {"text": "é 漢 🪝 \" ' \n", "n": [1, None, {"deep": 2.5}]}
    assert output(ran(command("cat", payload=payload))) == payload


def test_a_command_may_take_its_payload_as_an_argument() -> None:
    report = ran(command("/bin/sh", "-c", 'printf "%s" "$0"; cat', "{payload}", payload={"a b": "$HOME `x`"}))
    assert output(report) == {"a b": "$HOME `x`"}  # and there is nothing on standard input


@pytest.mark.parametrize(
    ("written", "result"),
    [
        ("", None),
        ("\\n \\n", None),
        ("7", 7),
        ("7\\n", 7),
        ('{\\n  "a":\\n 1}\\n', {"a": 1}),
        ("two\\nlines\\n", "two\nlines"),
        ("no end", "no end"),
        ("a\\000b", "a\ufffdb"),
        ("\\377\\376\\n", "\ufffd\ufffd"),
        ("{not json", "{not json"),
    ],
)
def test_the_result_of_a_command_is_json_or_text(written: str, result: Any) -> None:
    assert output(ran(command("printf", written))) == result


def test_lines_of_progress_are_told_and_are_no_part_of_the_result(sink: RecordingSink) -> None:
    lines = ['{"progress": 0.25, "message": "a quarter"}', '  {"progress": 9}', '{"progress": null, "message": "still"}', "{}"]
    assert output(ran(command("printf", "%s\n", *lines, sink=sink))) == {}
    assert sink.updates == [{"fraction": 0.25, "message": "a quarter"}, {"fraction": 1.0}, {"message": "still"}]


def test_what_only_looks_like_progress_is_result(sink: RecordingSink) -> None:
    line = '{"progress": 0.5, "rows": 3}'
    assert output(ran(command("printf", "%s\n", line, sink=sink))) == {"progress": 0.5, "rows": 3}
    assert output(ran(command("printf", "%s\n", '{"progress": "high"}', sink=sink))) == {"progress": "high"}
    assert sink.updates == []


def test_standard_error_is_the_log_line_by_line(sink: RecordingSink) -> None:
    assert output(ran(shell(r"printf 'one\r\n\ntwo\nthree' >&2; echo 7", sink=sink))) == 7
    assert sink.lines == ["one", "", "two", "three"]


def test_a_log_that_is_long_binary_or_without_ends_of_lines_arrives_whole(sink: RecordingSink) -> None:
    script = "import sys; e = sys.stderr.buffer; [e.write(b'%d\\n' % n) for n in range(50000)]; e.write(b'\\xff\\0\\n' + b'y' * 100000)"
    assert ran(python(script, sink=sink)) == Succeed()
    assert sink.lines[:50_000] == [str(n) for n in range(50_000)]
    assert sink.lines[50_000] == "\ufffd\0"
    assert "".join(sink.lines[50_001:]) == "y" * 100_000
    assert len(sink.lines) > 50_002  # in pieces, so that memory is bounded


def test_a_command_knows_its_run_and_has_the_environment_and_folder_of_its_job(tmp_path: Path) -> None:
    names = ["WINDLASS_RUN_ID", "WINDLASS_JOB", "WINDLASS_ATTEMPT", "WINDLASS_TOKEN", "WINDLASS_SCHEDULED_FOR", "OWN", "PATH"]
    script = f"import os, json; print(json.dumps([os.getcwd()] + [os.environ[name] for name in {names}]))"
    environment = (("OWN", "word"), ("WINDLASS_TOKEN", "forged"))
    result = output(ran(python(script, cwd=str(tmp_path), environment=environment)))
    assert result == [str(tmp_path), "run-1", "job", "1", "token-1", WHEN, "word", os.environ["PATH"]]


def test_the_secrets_of_a_worker_are_not_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "WINDLASS_HUB_TOKEN": "wl_secret",
        "WINDLASS_STORE": "postgresql://ann:secret@db/shop",
        "PGPASSWORD": "secret",
        "FORGE_INGEST_SECRET": "secret",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OWN", "word")
    script = "import os, json; print(json.dumps(dict(os.environ)))"
    names = "WINDLASS_RUN_ID", "WINDLASS_JOB", "WINDLASS_ATTEMPT", "WINDLASS_TOKEN", "WINDLASS_SCHEDULED_FOR"
    own = App(":memory:")
    tells = own.command("tells", [sys.executable, "-c", script])
    wants = own.command("wants", [sys.executable, "-c", script], environment=secrets)
    with working(own):
        variables, configured = (json.loads(ended(job.enqueue()).output or "") for job in (tells, wants))
    assert {name for name in variables if name.startswith("WINDLASS_")} == set(names)
    assert variables["OWN"] == "word"
    assert not secrets.keys() & variables.keys()
    assert secrets.items() <= configured.items()


def test_an_exit_status_is_named_with_the_end_of_standard_error() -> None:
    failure = error(ran(shell("seq 1 100 >&2; echo ignored; exit 3")))
    assert (failure.code, failure.message) == ("exited", "The process exited with status 3.")
    assert (failure.detail or "").splitlines() == [str(n) for n in range(81, 101)]


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT", "SIGTERM", "SIGUSR1"])
def test_the_signal_that_killed_a_command_is_named(name: str) -> None:
    failure = error(ran(shell(f"echo last words >&2; kill -{name[3:]} $$")))
    assert (failure.code, failure.message) == ("killed", f"The process was killed by {name}.")
    assert failure.detail == "last words"


def test_a_command_has_no_more_memory_than_its_job_allows() -> None:
    script = "block = bytearray(400 << 20); print(len(block))"
    assert output(ran(python(script))) == 400 << 20
    failure = error(ran(python(script, memory=100)))
    assert "MemoryError" in (failure.detail or "")
    assert failure.message == "The process exited with status 1."


def test_output_without_end_is_refused_and_the_command_killed() -> None:
    for script in ("yes", "yes | tr -d '\\n'"):
        failure = error(ran(shell(script)))
        assert failure.code == "bad_output"
        assert f"{OUTPUT:,}" in failure.message


def test_output_may_be_as_large_as_the_limit_and_no_larger() -> None:
    script = "print('\"' + 'x' * {} + '\"')"
    assert len(output(ran(python(script.format(OUTPUT - 2))))) == OUTPUT - 2
    assert error(ran(python(script.format(OUTPUT - 1)))).code == "bad_output"


def test_a_command_that_is_not_there_or_not_executable_is_named(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    for name, status, why in (("no-such-command-here", 127, "No such file"), (str(plain), 126, "Permission denied")):
        failure = error(ran(command(name)))
        said = f"{failure.message} {failure.detail}"
        assert name in said
        assert why in said
        assert str(status) in said


def test_a_folder_that_is_not_there_is_an_error_of_the_attempt(tmp_path: Path) -> None:
    failure = error(ran(command("true", cwd=str(tmp_path / "missing"))))
    assert failure.code == "not_started"


def test_a_payload_too_long_for_an_argument_is_an_error_of_the_attempt() -> None:
    failure = error(ran(command("echo", "{payload}", payload={"x": "x" * 250_000})))
    assert failure.code == "not_started"
    assert "too long" in failure.message


def test_a_command_need_not_read_its_payload() -> None:
    large = {"x": "x" * 250_000}  # more than a pipe holds
    assert output(ran(command("echo", "1", payload=large))) == 1
    assert output(ran(shell("exec <&-; echo 2", payload=large))) == 2
    assert output(ran(command("cat", payload=large))) == large


def test_a_command_may_close_its_output_and_go_on() -> None:
    assert error(ran(shell("echo 1; exec >&- 2>&-; sleep 0.3; exit 5"))).message == "The process exited with status 5."


class Ready(RecordingSink):
    """Waits for the first line, with which the commands below signal that they are ready."""

    def __init__(self) -> None:
        super().__init__()
        self.spoke = threading.Event()

    def line(self, text: str) -> None:
        super().line(text)
        self.spoke.set()

    def wait(self) -> None:
        assert self.spoke.wait(PATIENCE), "the handler does not speak"


def test_a_command_is_asked_to_stop_by_sigterm_and_may_tidy_up() -> None:
    ready = Ready()
    executor = shell("trap 'echo tidy >&2; exit 0' TERM; echo ready >&2; while :; do sleep 0.05; done", sink=ready)
    reports = started(executor)
    ready.wait()
    executor.ask_to_stop("cancel")
    assert error(reports.get(timeout=PATIENCE)).code == "Stopped"  # it may have left its work undone
    assert "tidy" in ready.lines


def test_a_command_that_ignores_sigterm_is_killed_with_all_it_started() -> None:
    ready = Ready()
    script = "trap '' TERM; sleep 600 & trap 'echo no >&2' TERM; echo $! >&2; while :; do sleep 0.05; done"
    executor = shell(script, sink=ready)
    reports = started(executor)
    ready.wait()
    executor.ask_to_stop("cancel")
    until(lambda: "no" in ready.lines, "the command to refuse")
    assert alive(int(ready.lines[0]))
    assert executor.kill()
    assert error(reports.get(timeout=PATIENCE)).message == "The process was killed by SIGKILL."
    until(lambda: not alive(int(ready.lines[0])))


@pytest.mark.parametrize(
    "ask", [lambda executor: executor.ask_to_stop("cancel"), lambda executor: executor.kill()], ids=["asked", "killed"]
)
def test_a_command_that_is_stopped_before_it_has_begun_does_not_run(ask: Callable[[Executor], Any], tmp_path: Path) -> None:
    executor = shell(f"sleep 5; touch {tmp_path}/ran")
    ask(executor)
    assert error(ran(executor)).code == "killed"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("how", ["sleep 600 & echo $!", "sleep 600 </dev/null >/dev/null 2>&1 & echo $!"], ids=["with pipes", "without"])
def test_what_a_command_leaves_behind_does_not_survive_it(how: str) -> None:
    pid = output(ran(shell(how)))
    until(lambda: not alive(pid))


def test_what_has_left_the_group_of_a_command_does_not_hold_up_its_end() -> None:
    pid = output(ran(shell("setsid sleep 600 & sleep 0.3; echo $!")))
    if alive(pid):
        os.kill(pid, signal.SIGKILL)


# Processes: these functions are imported by name in another process


@app.job(kind="process")
def where(ctx: Context, word: str = "") -> list[Any]:
    return [os.getpid(), word, ctx.run, ctx.attempt, ctx.token, when(ctx)]


@app.job(kind="process")
async def awaited(ctx: Context) -> int:
    await asyncio.sleep(0.01)
    assert current() is ctx
    return os.getpid()


@app.job(kind="process")
def talks(ctx: Context) -> None:
    ctx.logger.info("first")
    print("printed")
    sys.stdout.flush()
    ctx.progress(0.5, "half")
    ctx.beat()
    print("to standard error", file=sys.stderr)
    sys.stdout.buffer.write(b"\xff\xfe\n")
    os.write(1, b"z" * 100_000 + b"\n")
    print("no end of line", end="")


@app.job(kind="process")
def chatters(n: int) -> None:
    for i in range(n):
        print(i)


@app.job(kind="process")
def fails(how: str) -> None:
    if how == "raise":
        raise ValueError("broken here")
    if how == "SystemExit":
        raise SystemExit(4)
    if how == "_exit":
        os._exit(3)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(PATIENCE)


@app.job(kind="process", memory_limit=300)
def allocates(megabytes: int) -> int:
    return len(bytearray(megabytes << 20)) and os.getpid()


@app.job(kind="process")
def returns(size: int) -> str:
    return "x" * size


@app.job(kind="process")
def told(context: Context) -> list[str]:
    return [context.job, context.handler, current().handler]


@app.job(kind="process")
def skips(context: Context) -> None:
    raise SkipNow("duplicate")


@app.job(kind="process")
def closes_its_output() -> int:
    sys.stdout.close()
    return 1


@app.job(kind="process")
def sleeps(ctx: Context) -> str:
    ctx.logger.info("ready")
    time.sleep(PATIENCE * 2)
    return "slept"


@app.job(kind="process")
async def sleeps_awaited(ctx: Context) -> str:
    ctx.logger.info("ready")
    await asyncio.sleep(PATIENCE * 2)
    return "slept"


@app.job(kind="process")
def cleans_up(ctx: Context) -> None:
    try:
        ctx.logger.info("ready")
        while True:
            time.sleep(0.01)
    except Stopped:
        ctx.logger.info(ctx.why)


@app.job(kind="process")
def stubborn(ctx: Context) -> None:
    begun = False
    while True:
        try:
            if not begun:
                begun = True
                ctx.logger.info("ready")
            time.sleep(0.01)
        except Stopped:
            ctx.logger.info("no")


@app.job(kind="process")
def leaves_behind(how: str) -> int:
    if how == "fork":
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        return pid
    return subprocess.Popen(["sleep", "600"]).pid


@app.job(kind="process")
def forks_and_dies(ctx: Context, chatty: bool) -> None:
    pid = os.fork()
    if pid == 0:
        while True:
            if chatty:
                os.write(1, b"still here\n")
            time.sleep(0.005)
    ctx.logger.info(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(kind="process", backoff=(0,))
def dies_once(ctx: Context) -> int:
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    return ctx.attempt


def process(job: Any, payload: Any = None, *, pool: ProcessPool, sink: RecordingSink | None = None, **how: Any) -> ProcessExecutor:
    from msgspec.structs import replace

    sink, attempt = sink or RecordingSink(), call(payload)
    return ProcessExecutor(replace(job.handler, **how), Context(attempt, sink), attempt, sink, pool)


def test_a_function_runs_in_another_process_which_is_used_again(pool: ProcessPool) -> None:
    first, *rest = (output(ran(process(where, {"word": "é"}, pool=pool))) for _ in range(3))
    assert first[0] != os.getpid()
    assert first[1:] == ["é", "run-1", 1, "token-1", WHEN]
    assert rest == [first, first]


def test_a_process_is_replaced_after_so_many_runs(pool: ProcessPool) -> None:
    pids = [output(ran(process(where, pool=pool, recycle=2)))[0] for _ in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    assert not alive(pids[0])
    assert not alive(pids[2])


def test_two_at_once_are_two_processes(pool: ProcessPool) -> None:
    ready = Ready()
    executor = process(sleeps, pool=pool, sink=ready)
    reports = started(executor)
    ready.wait()
    pid, *_ = output(ran(process(where, pool=pool)))
    assert alive(pid)
    executor.kill()
    assert error(reports.get(timeout=PATIENCE)).message == "The process was killed by SIGKILL."
    assert output(ran(process(where, pool=pool)))[0] == pid


def test_a_coroutine_function_runs_in_a_process_too(pool: ProcessPool) -> None:
    assert output(ran(process(awaited, pool=pool))) != os.getpid()


def test_what_a_process_logs_prints_and_tells_arrives(pool: ProcessPool, sink: RecordingSink) -> None:
    assert ran(process(talks, pool=pool, sink=sink)) == Succeed()
    assert "INFO first" in sink.lines
    printed = [line for line in sink.lines if not line.startswith(("z", "INFO"))]
    assert printed == ["printed", "to standard error", "\ufffd\ufffd", "no end of line"]
    assert "".join(line for line in sink.lines if line.startswith("z")) == "z" * 100_000
    assert sink.updates == [{"fraction": 0.5, "message": "half"}]
    assert sink.beats == 1


def test_what_one_run_prints_is_not_in_the_log_of_the_next(pool: ProcessPool, sink: RecordingSink) -> None:
    ran(process(chatters, {"n": 30_000}, pool=pool, sink=sink))
    assert sink.lines == [str(n) for n in range(30_000)]
    other = RecordingSink()
    ran(process(where, pool=pool, sink=other))
    assert other.lines == []


def test_what_a_function_raises_in_a_process_is_its_error_and_the_process_goes_on(pool: ProcessPool) -> None:
    pid, *_ = output(ran(process(where, pool=pool)))
    failure = error(ran(process(fails, {"how": "raise"}, pool=pool)))
    assert (failure.code, failure.message) == ("ValueError", "broken here")
    assert "test_executors.py" in (failure.detail or "")
    assert error(ran(process(fails, {"how": "SystemExit"}, pool=pool))).code == "SystemExit"
    assert output(ran(process(where, pool=pool)))[0] == pid


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("_exit", "The process exited with status 3."),
        ("SIGSEGV", "The process was killed by SIGSEGV."),
        ("SIGKILL", "The process was killed by SIGKILL."),
        ("SIGABRT", "The process was killed by SIGABRT."),
    ],
)
def test_what_ended_a_process_is_named_and_the_next_run_has_another(how: str, message: str, pool: ProcessPool) -> None:
    failure = error(ran(process(fails, {"how": how}, pool=pool)))
    assert failure.message == message
    assert output(ran(process(where, pool=pool)))[1] == ""


def test_a_process_has_no_more_memory_than_its_job_allows(pool: ProcessPool) -> None:
    pid = output(ran(process(allocates, {"megabytes": 10}, pool=pool)))
    assert error(ran(process(allocates, {"megabytes": 1_000}, pool=pool))).code == "out_of_memory"
    assert output(ran(process(allocates, {"megabytes": 10}, pool=pool))) == pid
    assert output(ran(process(allocates, {"megabytes": 1_000}, pool=pool, memory=None))) != pid


def test_large_results_come_back_and_too_large_ones_are_refused(pool: ProcessPool) -> None:
    assert output(ran(process(returns, {"size": OUTPUT - 2}, pool=pool))) == "x" * (OUTPUT - 2)
    assert error(ran(process(returns, {"size": OUTPUT - 1}, pool=pool))).code == "bad_output"


def test_a_payload_that_does_not_fit_is_refused_in_a_process_and_not_tried_again(pool: ProcessPool) -> None:
    report = ran(process(returns, {"size": "large"}, pool=pool))
    assert isinstance(report, Refuse)
    assert (report.error.code, report.schema) == ("bad_payload", Signature(returns.function, "requeues").fingerprint)


def test_a_function_that_cannot_be_found_is_an_error_of_the_attempt(pool: ProcessPool) -> None:
    for place in (Place("no_such_module_here", "job"), Place(__name__, "no_such_job"), Place("job", "job", "/nonexistent.py")):
        assert error(ran(process(where, pool=pool, place=place))).message
    assert output(ran(process(where, pool=pool)))


def test_a_function_in_a_process_is_told_its_job_and_its_handler(pool: ProcessPool) -> None:
    for handler in ("story", None):
        attempt, sink = call(handler=handler), RecordingSink()
        executor = ProcessExecutor(told.handler, Context(attempt, sink), attempt, sink, pool)
        assert output(ran(executor)) == ["job", handler or "job", handler or "job"]


def test_a_function_in_a_process_may_skip_its_run(pool: ProcessPool) -> None:
    assert ran(process(skips, pool=pool)) == Skip(reason="duplicate")


def test_a_function_may_close_its_output(pool: ProcessPool) -> None:
    assert output(ran(process(closes_its_output, pool=pool))) == 1
    assert output(ran(process(where, pool=pool)))


@pytest.mark.parametrize("job", [sleeps, sleeps_awaited], ids=lambda job: job.name)
def test_a_function_in_a_process_is_asked_to_stop_by_an_exception(job: Any, pool: ProcessPool) -> None:
    ready = Ready()
    executor = process(job, pool=pool, sink=ready)
    reports = started(executor)
    ready.wait()
    executor.ask_to_stop("cancel")
    assert error(reports.get(timeout=PATIENCE)).code == "Stopped"


def test_a_function_in_a_process_may_clean_up_and_knows_why(pool: ProcessPool) -> None:
    ready = Ready()
    executor = process(cleans_up, pool=pool, sink=ready)
    reports = started(executor)
    ready.wait()
    executor.ask_to_stop("timeout")
    assert error(reports.get(timeout=PATIENCE)).code == "Stopped"
    assert ready.lines == ["INFO ready", "INFO timeout"]


def test_a_function_that_does_not_stop_is_killed(pool: ProcessPool) -> None:
    ready = Ready()
    executor = process(stubborn, pool=pool, sink=ready)
    reports = started(executor)
    ready.wait()
    executor.ask_to_stop("cancel")
    until(lambda: "INFO no" in ready.lines, "the handler to refuse")
    assert executor.kill()
    assert error(reports.get(timeout=PATIENCE)).message == "The process was killed by SIGKILL."


@pytest.mark.parametrize("warm", [False, True], ids=["new process", "used process"])
@pytest.mark.parametrize(
    "ask", [lambda executor: executor.ask_to_stop("cancel"), lambda executor: executor.kill()], ids=["asked", "killed"]
)
def test_a_function_that_is_stopped_before_it_has_begun_does_not_run_on(
    ask: Callable[[Executor], Any], warm: bool, pool: ProcessPool
) -> None:
    if warm:
        ran(process(where, pool=pool))
    executor = process(sleeps, pool=pool)
    ask(executor)
    assert error(ran(executor)).code in ("killed", "Stopped")


def test_a_process_that_died_while_idle_costs_no_attempt(pool: ProcessPool) -> None:
    pid, *_ = output(ran(process(where, pool=pool)))
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    assert output(ran(process(where, pool=pool)))[0] != pid


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_what_a_function_leaves_behind_ends_with_its_process(how: str, pool: ProcessPool) -> None:
    pid = output(ran(process(leaves_behind, {"how": how}, pool=pool)))
    pool.close()
    until(lambda: not alive(pid))


@pytest.mark.parametrize("chatty", [False, True], ids=["silent", "chatty"])
def test_a_process_that_dies_takes_what_it_forked_along(chatty: bool, pool: ProcessPool, sink: RecordingSink) -> None:
    report = ran(process(forks_and_dies, {"chatty": chatty}, pool=pool, sink=sink))
    assert error(report).message == "The process was killed by SIGKILL."
    pid = next(int(line.removeprefix("INFO ")) for line in sink.lines if line.startswith("INFO"))
    until(lambda: not alive(pid))


def test_a_process_whose_worker_died_without_reading_its_last_words_ends_too() -> None:
    child, place = ChildProcess(0), sleeps.handler.place
    assert place is not None
    try:
        child.begin(BeginRequest(place, call(), sys.path))
        until(lambda: select.select([child._socket], [], [], 0)[0], "a word")
        child._socket.close()
        until(lambda: not alive(child.process.pid), "the process to end")
    finally:
        child.end()


def test_idle_processes_end_when_the_worker_does(pool: ProcessPool) -> None:
    pid, *_ = output(ran(process(where, pool=pool)))
    pool.close()
    assert not alive(pid)
    other, *_ = output(ran(process(where, pool=pool)))  # one that was still at work when it closed
    assert not alive(other)


# Processes of a worker


@pytest.fixture
def on_store() -> Iterator[App]:
    """The app of the functions above, on a store of its own."""
    yield app
    app.close()


def test_a_process_is_stopped_for_every_reason_that_a_worker_may_have(on_store: App) -> None:
    with working(on_store, slots=4, lease=3_600) as at_work:
        cancelled, drained = sleeps.enqueue(), sleeps.enqueue()
        late = sleeps.options(timeout=0.5, max_attempts=1).enqueue()
        until(lambda: cancelled.logs() and drained.logs(), "the handlers to begin")
        cancelled.cancel("enough")
        until(lambda: cancelled.refresh().state is State.CANCELLED, "the cancel")
        until(lambda: late.refresh().state is State.FAILED, "the timeout")
        at_work.stop(grace=0.4)
    assert late.record.error is not None
    assert late.record.error.code == "timeout"
    run = drained.refresh()
    assert (run.state, run.failures, run.requeues) == (State.QUEUED, 0, 1)


def test_what_killed_a_process_is_in_the_attempt_and_the_next_one_may_succeed(on_store: App) -> None:
    with working(on_store, slots=2):
        handle = dies_once.enqueue()
        until(lambda: handle.refresh().state is State.SUCCEEDED, "the second attempt")
    first, second = handle.attempts()
    assert first.error == Failure("killed", "The process was killed by SIGSEGV.")
    assert (second.n, handle.result) == (2, 2)


# Programs of their own

SCRIPT = """
import os, subprocess, sys, time
from windlass import App, Context

app = App(sys.argv[1])

@app.job(name="in process", kind="process")
def in_process(folder: str, hold: bool = False) -> str:
    if hold:
        grandchild = subprocess.Popen(["sleep", "600"])
        for name, pid in (("process", os.getpid()), ("process-grandchild", grandchild.pid)):
            with open(os.path.join(folder, name + ".new"), "w") as file:
                file.write(str(pid))
            os.rename(file.name, os.path.join(folder, name))
        time.sleep(600)
    return __name__

app.command("command", ["/bin/sh", "-c", {hold!r}], environment={{"FOLDER": sys.argv[2]}})

if __name__ == "__main__":
    if sys.argv[3] == "hold":
        app.enqueue("in process", {{"folder": sys.argv[2], "hold": True}})
        app.enqueue("command")
        app.work(slots=2, lease=5)
    else:
        run = in_process.enqueue(sys.argv[2])
        app.work(burst=True)
        print(run.wait(10))
"""
HOLD = """
sleep 600 &
echo $! > $FOLDER/grandchild.new; mv $FOLDER/grandchild.new $FOLDER/command-grandchild
echo $$ > $FOLDER/command.new; mv $FOLDER/command.new $FOLDER/command; exec sleep 600
"""
NOTES = ("process", "command", "process-grandchild", "command-grandchild")


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.format(hold=HOLD))
    return [sys.executable, str(file), str(tmp_path / "windlass.db"), str(tmp_path)]


def test_a_job_in_a_program_run_as_a_script_is_found_by_its_process(script: list[str]) -> None:
    done = subprocess.run([*script, "burst"], capture_output=True, text=True, timeout=PATIENCE * 2)
    assert (done.returncode, done.stdout.strip()) == (0, "__windlass__"), done.stderr


def _killed_worker(script: list[str], folder: Path) -> dict[str, int]:
    """The processes of a worker that was killed while it worked on a function in a process and on a command."""
    with subprocess.Popen([*script, "hold"], start_new_session=True) as worker:
        try:
            until(lambda: all((folder / name).exists() for name in NOTES), "the handlers to begin")
            return {name: int((folder / name).read_text()) for name in NOTES}
        finally:
            worker.kill()


def test_no_process_and_no_command_outlives_a_worker_that_was_killed(script: list[str], tmp_path: Path) -> None:
    pids = _killed_worker(script, tmp_path)
    try:
        for name in NOTES:
            until(lambda name=name: not alive(pids[name]), f"the {name} to end")  # type: ignore[misc]
    finally:
        for pid in pids.values():
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
