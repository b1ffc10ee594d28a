"""A process that worked under a name and is proven gone loses its leases when the next one starts; all others keep theirs."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness import Harness
from tests.workers import until
from windlass.model import LIFE_TAG, Life, State, WorkerInfo
from windlass.worker import lives
from windlass.worker.lives import is_gone, own_process

SLEEP = "import time; time.sleep(600)"
TELL = "from windlass.worker.lives import own_process; print(own_process(), flush=True);"
_EXIT = {"x86_64": 60, "aarch64": 93}
HEADLESS = f"""
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({_EXIT.get(platform.machine())}, 0)
"""

pytestmark = pytest.mark.skipif(own_process() is None, reason="Nothing is told of processes here.")


@contextmanager
def process(code: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process, and what it tells of itself."""
    with subprocess.Popen([sys.executable, "-c", TELL + code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().decode().strip()
        finally:
            child.kill()


def parts(process: str) -> dict[str, str]:
    return dict(zip(("boot", "pids", "times", "pid", "began"), process.split(" "), strict=True))


def but(process: str, **others: str) -> str:
    return " ".join((parts(process) | others).values())


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2][0]


def test_a_process_is_gone_when_it_has_ended_and_not_before() -> None:
    with process(SLEEP) as (child, told):
        assert not is_gone(told)
        child.send_signal(signal.SIGSTOP)
        assert not is_gone(told)
        child.kill()
        until(lambda: state_of(child.pid) == "Z")
        assert is_gone(told)  # nobody has asked how it ended, but nothing of it runs
        child.wait()
        assert is_gone(told)


@pytest.mark.skipif(platform.machine() not in _EXIT, reason="The number of a system call is not known.")
def test_a_process_whose_first_thread_has_ended_is_not_gone_while_others_run() -> None:
    with process(HEADLESS) as (child, told):
        until(lambda: state_of(child.pid) == "Z")
        assert not is_gone(told)
        child.kill()
        child.wait()
        assert is_gone(told)


def test_a_process_whose_id_another_one_has_now_is_gone() -> None:
    own = own_process() or ""
    assert not is_gone(own)
    assert is_gone(but(own, began="1"))


def test_nothing_is_known_of_processes_of_another_boot_or_namespace() -> None:
    with process("") as (child, told):
        child.wait()
    assert is_gone(told)
    for elsewhere in ({"boot": "another"}, {"pids": "pid:[1]"}, {"times": "time:[1]"}):
        assert not is_gone(but(told, **elsewhere))


@pytest.mark.parametrize("told", ["", "x", "somewhere 1", "a b c d e", "a b c d e f"])
def test_what_cannot_be_read_proves_nothing(told: str) -> None:
    assert not is_gone(told)
    for pid in ("0", "-1", "x", "٣", "9" * 30):
        assert not is_gone(but(own_process() or "", pid=pid, began="1"))


def test_a_process_that_is_hidden_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    own, stat = own_process() or "", lives._stat

    def hidden(pid: int) -> lives.Stat:
        if pid != os.getpid():
            raise FileNotFoundError
        return stat(pid)

    with process(SLEEP) as (child, told):
        monkeypatch.setattr(lives, "_stat", hidden)
        assert not is_gone(told)
        assert not is_gone(but(own, pid="1", began="1"))  # it may belong to somebody else
        child.kill()
        child.wait()
        assert is_gone(told)


def test_where_nothing_is_told_of_processes_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    with process("") as (child, told):
        child.wait()
    monkeypatch.setattr(lives, "own_process", lambda: None)
    assert not is_gone(told)
    monkeypatch.undo()
    monkeypatch.setattr(os, "readlink", lambda path: "1")  # the files of another namespace
    assert own_process() is None


# In the store


def life(name: str) -> Life:
    return Life(name * LIFE_TAG, f"somewhere {name}")


def taken(h: Harness, name: str | None) -> str:
    """A run that a process of worker w has claimed; None: one that tells nothing of itself."""
    h.create()
    token = (name * LIFE_TAG if name else "") + h.clock.nonce()
    (run,) = h(h.engine.claim(WorkerInfo("w", slots=9), token=token))
    return run.id


def test_one_that_claims_between_the_look_at_the_others_and_their_end_keeps_its_run(h: Harness) -> None:
    h(h.engine.register(WorkerInfo("w", slots=9)))
    h(h.engine.begin_life("w", life("b")))
    lost = taken(h, "b")
    assert h(h.engine.begin_life("w", life("c"))) == [life("b"), life("c")]
    other = h.another()
    other(other.engine.begin_life("w", life("d")))
    kept = [taken(other, "d"), taken(other, None)]
    assert h(h.engine.end_lives("w", [life("b").tag])) == 1
    assert [h.get(run).state for run in (lost, *kept)] == [State.SCHEDULED, State.CLAIMED, State.CLAIMED]


def test_a_process_of_which_a_run_was_taken_already_loses_only_what_it_still_has(h: Harness) -> None:
    h(h.engine.register(WorkerInfo("w", slots=9)))
    h(h.engine.begin_life("w", life("b")))
    first, second = taken(h, "b"), taken(h, "b")
    h(h.engine.cancel(second))
    h.sweep(after=20_000)
    h(h.engine.end_lives("w", [life("b").tag]))
    assert [h.get(run).state for run in (first, second)] == [State.SCHEDULED, State.CANCELLED]
    h.sweep(after=60_000)
    assert h(h.engine.end_lives("w", [life("b").tag])) == 0
    assert h.get(first).failures == 1


def test_processes_are_forgotten_with_their_worker(h: Harness) -> None:
    h(h.engine.register(WorkerInfo("w")))
    h(h.engine.begin_life("w", life("b")))
    h.sweep(after=h.engine.limits.keep_workers + 60_000)
    h(h.engine.register(WorkerInfo("w")))
    assert h(h.engine.begin_life("w", life("c"))) == [life("c")]
