"""A command `windlass` for scripts that starts within milliseconds: a process that has imported everything forks for each call.

Run as a program: without arguments it is that process; with arguments it hands them, its folder and its standard streams over, and
ends as the fork does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = "FORKS_SOCKET"


@contextmanager
def forked(folder: Path) -> Iterator[dict[str, str]]:
    """The variables by which `windlass` in a shell is a fork of one process."""
    folder.mkdir()
    command = folder / "windlass"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{__file__}" call "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", VARIABLE: str(folder / "socket")}
    with subprocess.Popen([sys.executable, __file__], env=os.environ | variables, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()  # it listens
        try:
            yield variables
        finally:
            server.kill()


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # how Linux reports that the other end is closed
        return b""


def serve() -> None:
    import tomllib  # noqa: F401 - each import here is one that no command has to make

    import windlass.store.sqlite  # noqa: F401
    from windlass.cli.rows import all_rows

    assert list(all_rows())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ[VARIABLE])
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            text, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            if os.fork() == 0:
                listener.close()
                _answer(connection, streams, **json.loads(text))
            for descriptor in streams:
                os.close(descriptor)
            connection.close()


def _answer(connection: socket.socket, streams: list[int], words: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be the command, in this process, which ends with it."""
    from windlass.cli import main

    code = 1
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 - until the process ends
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        code = main(words)
        sys.stdout.close()
        sys.stderr.close()
    finally:
        connection.send(str(code).encode())
        os._exit(code)


def call(words: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[VARIABLE])
        text = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)})
        socket.send_fds(connection, [text.encode()], [0, 1, 2])
        return int(connection.recv(16) or b"1")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(call(sys.argv[2:]))
    serve()
