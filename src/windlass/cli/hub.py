"""The commands that serve: a hub, and a hub with a worker beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from windlass import config
from windlass.app.working import SWITCH_INTERVAL
from windlass.cli.codes import FAILED, OK
from windlass.cli.logs import say_log
from windlass.cli.shell import Shell, who
from windlass.cli.work import again
from windlass.engine import Engine
from windlass.errors import BadInput
from windlass.extras import install

if TYPE_CHECKING:
    from windlass.hub import HubSettings

LINK_FOR = "the page"
PARTING = 40  # seconds that a worker may take to drain
LOOK_EVERY = 0.5  # seconds between two looks at whether all parts are still there


@contextmanager
def _needing_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("windlass"):
            raise
        raise BadInput("A hub needs packages that are not installed.", hint=install("hub")) from error


def hub(shell: Shell) -> int:
    """Serve the HTTP API and the page until told to stop."""
    return _run(shell, link=False)


def up(shell: Shell) -> int:
    """Serve everything from one file: the HTTP API, the page, and a worker for an app."""
    return _run(shell, link=True)


def _run(shell: Shell, *, link: bool) -> int:
    with _needing_extra():
        from windlass.hub import HubSettings
        from windlass.hub.serving import listening
    said = shell.settings.filled()
    settings = HubSettings(
        host=said.host or "127.0.0.1",
        port=8080 if said.port is None else said.port,
        connections=_connections(said.connections),
        allow=said.allow or (),
        plain_http=said.plain_http or False,
        open=not link,
    )
    say_log(said)
    sys.setswitchinterval(SWITCH_INTERVAL)
    sock = listening(settings.host, settings.port)
    with sock, _worker(shell) as worker:
        return asyncio.run(_serve(shell, settings, sock, worker, link=link))


def _connections(asked: int | None) -> int:
    """How many connections the hub may have: as many as it was told to, else as many as it can."""
    from windlass.hub import HubSettings
    from windlass.hub.serving import SPARE, room_for

    wanted = asked or HubSettings().connections
    room = room_for(wanted)
    if asked is not None and room < asked:
        raise BadInput(
            f"A hub with {asked:,} connections needs {asked + SPARE:,} open files, more than this process may have.",
            hint=f"Allow more (ulimit -n {asked + SPARE}; LimitNOFILE= in systemd), or set connections to {room:,} or less.",
        )
    return room


@contextmanager
def _worker(shell: Shell) -> Iterator[subprocess.Popen[bytes] | None]:
    """A worker for the app that is named, in a process of its own, drained at the end."""
    target = shell.settings.app if shell.arguments.command == "up" else None
    if target is None:
        yield None
        return
    said = shell.settings.filled()
    words = ["work", target, "--slots", str(said.slots), "--log-level", str(said.log_level), "--log-format", str(said.log_format)]
    words += ["--reload"] if shell.arguments.reload else []
    environment = os.environ | {"WINDLASS_STORE": shell.store}  # not on the command line, where everybody could read a password
    with subprocess.Popen(again(words), env=environment, start_new_session=True) as process:  # a Ctrl-C is passed on once, by us
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PARTING)
            process.kill()


async def _serve(shell: Shell, settings: HubSettings, sock: socket.socket, worker: subprocess.Popen[bytes] | None, *, link: bool) -> int:
    from windlass.hub import Hub, HubApp, auth
    from windlass.hub.serving import server

    store = config.open_store(shell.store, shell.clock, blocking=False, settings=shell.settings)
    try:
        engine = Engine(store, shell.clock, keeps=config.keeps_of(shell.settings))
        if not link:
            auth.refuse_open(settings.host, await engine.any_token())
        hub = Hub(engine, shell.clock, settings)
        serving = server(HubApp(hub), connections=settings.connections)
        address = _address(settings.host, sock.getsockname()[1])
        _tell(
            shell, address, f"{address}#ticket={await engine.by(who(), 'invite', LINK_FOR).invite(LINK_FOR, ('admin',))}" if link else None
        )
        served = asyncio.create_task(serving.serve(sockets=[sock]))
        while not served.done():
            await asyncio.wait({served}, timeout=LOOK_EVERY)
            if worker is not None and worker.poll() is not None:
                shell.output.note(f"The worker has ended with code {worker.returncode}; the hub ends too.")
                serving.should_exit = True
            if hub.failed is not None:
                shell.output.note(f"A part of the hub has failed, so it ends: {hub.failed}")
                serving.should_exit = True
        await served
        return FAILED if hub.failed is not None or (worker is not None and worker.poll() is not None) else OK
    finally:
        await store.close()


def _address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _tell(shell: Shell, address: str, link: str | None) -> None:
    if shell.output.json:
        shell.output.document({"address": address, "link": link, "store": config.shown(shell.store), "pid": os.getpid()})
    else:
        shell.output.raw(f"windlass serves {config.shown(shell.store)} at {address}")
        if link is not None:
            shell.output.raw(f"Sign in, once, within ten minutes: {link}")
    sys.stdout.flush()
