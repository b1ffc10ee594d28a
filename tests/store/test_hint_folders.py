"""The folder of sockets beside a SQLite file: what others put in its place or into it gives them nothing, and takes nothing but time."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.served import ServedHub
from tests.workers import until
from windlass.clock import SystemClock
from windlass.store.base import queue_topic, run_sync
from windlass.store.sqlite import BlockingSqlite, hints

LONG = 60.0
A = queue_topic("a")
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BlockingSqlite]:
    store = BlockingSqlite(path, SystemClock())
    yield store
    run_sync(store.close())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database that all may write, so that its hints are opened to all."""
    path = tmp_path / "shop.db"
    with opened(path):
        path.chmod(0o666)
    return path


def wait_once(path: Path) -> None:
    """Be there, and have heard whatever was missed; without a socket that is a look, and so are the next ones."""
    with opened(path) as store:
        assert run_sync(store.wait([A], LONG)) == {A}
        run_sync(store.wait([A], 0.0))


def about(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder that its owner alone may open, with something in it."""
    folder = tmp_path / "secret"
    folder.mkdir(0o700)
    (folder / "key").write_text("secret")
    (folder / "key").chmod(0o600)
    return folder


# In its place


def test_a_link_in_its_place_is_not_followed(path: Path, secret: Path, caplog: pytest.LogCaptureFixture) -> None:
    link = path.with_name("shop.db-hints")
    link.symlink_to(secret)
    before = about(secret)
    with opened(path) as store:
        for _ in range(3):
            run_sync(store.wait([A], 0))
            store.wake([A])
        assert os.listdir(secret) == ["key"]
    assert about(secret) == before
    assert link.is_symlink()
    [warning] = warnings(caplog)
    assert "is not a folder. Remove it." in warning


def _link(place: Path, secret: Path) -> None:
    place.rmdir()
    place.symlink_to(secret)


def _own_folder(place: Path, secret: Path) -> None:
    place.rmdir()
    secret.rename(place)


@pytest.mark.parametrize("swap", [_link, _own_folder])
def test_what_is_put_in_its_place_between_two_looks_is_not_opened_to_others(
    path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, swap: Callable[[Path, Path], None]
) -> None:
    before, make = about(secret), os.mkdir

    def swapped(name: str, mode: int = 0o777) -> None:
        make(name, mode)
        swap(Path(name), secret)

    monkeypatch.setattr(os, "mkdir", swapped)
    wait_once(path)
    there = path.with_name("shop.db-hints") if swap is _own_folder else secret
    assert about(there) == before
    assert os.listdir(there) == ["key"]


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_folder_of_another_user_is_not_used(path: Path, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    folder = path.with_name("shop.db-hints")
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, NOBODY, NOBODY)
    wait_once(path)
    assert os.listdir(folder) == []
    assert about(folder) == (NOBODY, NOBODY, mode)
    [warning] = warnings(caplog)
    assert f"belongs to user {NOBODY}" in warning


@pytest.mark.parametrize(("file", "folder"), [(0o600, 0o777), (0o666, 0o700)])
def test_a_folder_for_others_than_those_who_write_the_file_is_not_used(
    path: Path, file: int, folder: int, caplog: pytest.LogCaptureFixture
) -> None:
    path.chmod(file)
    made = path.with_name("shop.db-hints")
    made.mkdir()
    made.chmod(folder)
    wait_once(path)
    assert os.listdir(made) == []
    [warning] = warnings(caplog)
    assert "chmod" in warning


# Inside it


def _symbolic(name: Path, target: Path) -> None:
    name.symlink_to(target)


def _hard(name: Path, target: Path) -> None:
    os.link(target, name)


@contextlib.contextmanager
def listener(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.setblocking(False)
        made.bind(str(path))
        path.chmod(0o600)
        yield made


@pytest.mark.parametrize("kind", ["file", "socket"])
@pytest.mark.parametrize("link", [_symbolic, _hard])
def test_what_takes_the_name_of_a_socket_is_not_opened_to_others(
    path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch, link: Callable[[Path, Path], None], kind: str
) -> None:
    bind, folder = hints._bind, path.with_name("shop.db-hints")
    if os.geteuid() == 0:
        folder.mkdir()
        folder.chmod(0o777)
        for each in (path, folder):
            os.chown(each, NOBODY, NOBODY)  # whoever owns it could have it all
    target = secret / ("key" if kind == "file" else "socket")
    with listener(secret / "socket"):
        before = about(target)

        def swapped(made: socket.socket, into: object, mark: str) -> str:
            name = bind(made, into, mark)  # type: ignore[arg-type]
            (folder / name).unlink()
            link(folder / name, target)
            return name

        monkeypatch.setattr(hints, "_bind", swapped)
        wait_once(path)
        assert about(target) == before


def test_a_hub_gives_nothing_away_that_takes_the_name_of_its_socket(path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind, folder, swaps = hints._bind, path.with_name("shop.db-hints"), list[str]()
    if os.geteuid() == 0:
        folder.mkdir()
        folder.chmod(0o777)
        for each in (path, folder):
            os.chown(each, NOBODY, NOBODY)
    before = about(secret / "key")

    def swapped(made: socket.socket, into: object, mark: str) -> str:
        name = bind(made, into, mark)  # type: ignore[arg-type]
        (folder / name).unlink()
        (folder / name).symlink_to(secret / "key")
        swaps.append(name)
        return name

    monkeypatch.setattr(hints, "_bind", swapped)
    hub = ServedHub(path)
    try:
        until(lambda: len(swaps) > 2)  # it looks again, and tries again
    finally:
        hub.stop()
    assert about(secret / "key") == before


@pytest.mark.parametrize("link", [_symbolic, _hard])
def test_nothing_is_sent_to_where_a_name_only_leads(path: Path, secret: Path, link: Callable[[Path, Path], None]) -> None:
    with opened(path) as store, opened(path) as other, listener(secret / "socket") as trap:
        run_sync(other.wait([A], LONG))
        link(path.with_name("shop.db-hints") / "1.1", secret / "socket")
        store.wake([A])
        assert run_sync(other.wait([A], LONG)) == {A}
        with pytest.raises(BlockingIOError):
            trap.recv(1_000)
        (path.with_name("shop.db-hints") / "1.1").unlink()


# Several users

AS_NOBODY = f"""
import os, sys
from windlass.clock import SystemClock
from windlass.store.base import run_sync
from windlass.store.sqlite import BlockingSqlite
run_sync(BlockingSqlite(":memory:", SystemClock()).close())  # what it reads from disk, another user may not
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
store = BlockingSqlite(sys.argv[1], SystemClock())
print(run_sync(store.wait(["{A}"], 60)), flush=True)
for line in sys.stdin:
    if line.startswith("wake"):
        store.wake(["{A}"])
    else:
        print(run_sync(store.wait(["{A}"], 60)), flush=True)
run_sync(store.close())
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    name = Path(tempfile.mkdtemp())
    name.chmod(0o755)
    yield name
    shutil.rmtree(name)


@as_root
def test_root_makes_no_folder_beside_the_file_of_another_user(open_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = open_folder / "shop.db"
    with opened(path):
        pass
    os.chown(path, NOBODY, NOBODY)
    wait_once(path)
    assert not path.with_name("shop.db-hints").exists()
    [warning] = warnings(caplog)
    assert "Run this process as that user" in warning


@as_root
def test_root_and_the_owner_of_the_file_wake_each_other(open_folder: Path) -> None:
    path = open_folder / "shop.db"
    os.chown(open_folder, NOBODY, NOBODY)
    command = [sys.executable, "-c", AS_NOBODY, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as theirs:
        assert theirs.stdin is not None
        assert theirs.stdout is not None
        assert theirs.stdout.readline() == f"{ {A} }\n"
        assert about(path.with_name("shop.db-hints")) == (NOBODY, NOBODY, 0o700)
        with opened(path) as store:
            assert run_sync(store.wait([A], LONG)) == {A}
            assert store._hints._others._socket is not None  # type: ignore[attr-defined]
            theirs.stdin.write("wake\n")
            assert run_sync(store.wait([A], LONG)) == {A}
            theirs.stdin.write("wait\n")
            store.wake([A])
            assert theirs.stdout.readline() == f"{ {A} }\n"
        assert path.with_name("shop.db-hints").exists()
        theirs.stdin.close()
        assert theirs.wait(60) == 0
    assert not path.with_name("shop.db-hints").exists()
