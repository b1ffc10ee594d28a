"""The commands that serve: a hub alone, and a hub with a worker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from windlass.app.working import SWITCH_INTERVAL
from windlass.cli.codes import FAILED, OK
from windlass.cli.context import CommandContext, actor
from windlass.cli.logs import start_logging
from windlass.cli.rows import WORK, Commands, option, settings_of
from windlass.cli.work import again, find_app
from windlass.config.addresses import shown
from windlass.config.opening import keeps_of, open_store
from windlass.dialects import mount_all
from windlass.dialects.base import Dialect
from windlass.dialects.hosting import check_hub, host_value, hub_values
from windlass.engine import Engine
from windlass.errors import BadInput
from windlass.extras import install

if TYPE_CHECKING:
    from windlass.app import App, AsyncApp
    from windlass.hub import HubSettings

LINK_FOR = "the page"
DRAIN = 40  # seconds that a worker may take to drain
CHECK_EVERY = 0.5  # seconds between two checks whether all parts still run

COMMANDS = Commands()


@contextmanager
def _needing_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("windlass"):
            raise
        raise BadInput("A hub needs packages that are not installed.", hint=install("hub")) from error


@COMMANDS.add(
    "up",
    *settings_of("up"),
    option("--reload", action="store_true", help="for development: restart the worker when a Python file changes"),
    topic=WORK,
    meant_by=("dev", "demo"),
    examples="""
    windlass up shop:app
    windlass up shop:app --store shop.db --port 9000 --reload
    windlass up
    """,
)
def up(context: CommandContext) -> int:
    """Serve the HTTP API and the page, and run a worker for an app if one is named."""
    return _run(context, link=True)


@COMMANDS.add(
    "hub",
    *settings_of("hub"),
    topic=WORK,
    meant_by=("serve", "server", "api", "web", "ui", "dashboard", "page"),
    examples="windlass hub --store shop.db\nwindlass hub --store postgresql://shop@db/shop --host 0.0.0.0",
)
def hub(context: CommandContext) -> int:
    """Serve the HTTP API and the page until Ctrl-C or SIGTERM."""
    return _run(context, link=False)


def _run(context: CommandContext, *, link: bool) -> int:
    with _needing_extra():
        from windlass.hub import HubSettings
        from windlass.hub.serving import listening
    start_logging(context.settings.filled())
    root = _root(context)
    context.values.update(hub_values(root, context.values, os.environ))
    dialects = mount_all(context.settings.dialects or {}, root, os.environ, context.clock)
    check_hub(root, context.store, os.environ)
    context.values.update(host_value(root, context.values, guarded=any(dialect.name == root and dialect.guarded for dialect in dialects)))
    filled = context.settings.filled()
    assert filled.host is not None
    assert filled.port is not None
    settings = HubSettings(
        host=filled.host,
        port=filled.port,
        connections=_connections(filled.connections),
        allow=filled.allow or (),
        plain_http=filled.plain_http or False,
        notify=filled.notify or (),
        open=not link,
    )
    sys.setswitchinterval(SWITCH_INTERVAL)
    app = _app(context) if any(dialect.calls for dialect in dialects) else None
    sock = listening(settings.host, settings.port)
    with sock, _worker(context) as worker:
        return asyncio.run(_serve(context, settings, sock, worker, HubDialects(dialects, root, app), link=link))


class HubDialects(NamedTuple):
    """The dialects of a hub, and which of them is at its root."""

    mounted: Sequence[Dialect]
    root: str | None
    app: App | AsyncApp | None  # whose handlers they call


def _root(context: CommandContext) -> str | None:
    """The dialect at the root of the hub."""
    names = context.settings.dialect or ()
    if len(names) > 1:
        raise BadInput(
            f"Only one dialect can be at the root of a hub, not {' and '.join(names)}.",
            hint="Name one with --dialect; every dialect with a table in windlass.toml is below /dialects.",
        )
    return names[0] if names else None


def _connections(setting: int | None) -> int:
    """How many connections the hub may have: as many as are set, else as many as it can."""
    from windlass.hub import HubSettings
    from windlass.hub.serving import SPARE, room_for

    room = room_for(setting or HubSettings().connections)
    if setting is not None and room < setting:
        raise BadInput(
            f"A hub with {setting:,} connections needs {setting + SPARE:,} open files, more than this process may have.",
            hint=f"Allow more (ulimit -n {setting + SPARE}; LimitNOFILE= in systemd), or set connections to {room:,} or less.",
        )
    return room


def _target(context: CommandContext) -> str | None:
    """The app that is named."""
    return context.settings.app if context.arguments.command == "up" else None


def _app(context: CommandContext) -> App | AsyncApp | None:
    """The app that is named, in this process too."""
    target = _target(context)
    return None if target is None else find_app(target, context.store)


@contextmanager
def _worker(context: CommandContext) -> Iterator[subprocess.Popen[bytes] | None]:
    """A worker for the app that is named, in a process of its own, drained at the end."""
    target = _target(context)
    if target is None:
        yield None
        return
    filled = context.settings.filled()
    words = ["work", target, "--slots", str(filled.slots), "--log-level", str(filled.log_level), "--log-format", str(filled.log_format)]
    words += ["--reload"] if context.arguments.reload else []
    environment = os.environ | {"WINDLASS_STORE": context.store}  # not on the command line, where other users could read a password
    with subprocess.Popen(again(words), env=environment, start_new_session=True) as process:  # Ctrl-C is passed on once, below
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(DRAIN)
            process.kill()


async def _serve(
    context: CommandContext,
    settings: HubSettings,
    sock: socket.socket,
    worker: subprocess.Popen[bytes] | None,
    dialects: HubDialects,
    *,
    link: bool,
) -> int:
    from windlass.hub import Hub, HubApp, auth
    from windlass.hub.serving import server

    store = open_store(context.store, context.clock, blocking=False, settings=context.settings)
    try:
        engine = Engine(store, context.clock, keeps=keeps_of(context.settings))
        any_token = await engine.any_token()
        if not link:
            auth.refuse_open(settings.host, any_token, guarded=any(dialect.guarded for dialect in dialects.mounted))
        hub = Hub(engine, context.clock, settings, app=dialects.app)
        for dialect in dialects.mounted:
            auth.refuse_dialect(dialect, settings, any_token)
        serving = server(HubApp(hub, dialects.mounted, dialects.root), connections=settings.connections)
        address = _address(settings.host, sock.getsockname()[1])
        ticket = await engine.by(actor(), "invite", LINK_FOR).invite(LINK_FOR, ("admin",)) if link else None
        _print_address(context, address, None if ticket is None else f"{address}#ticket={ticket}")
        served = asyncio.create_task(serving.serve(sockets=[sock]))
        while not served.done():
            await asyncio.wait({served}, timeout=CHECK_EVERY)
            if worker is not None and worker.poll() is not None:
                context.output.note(f"The worker has ended with code {worker.returncode}; the hub ends too.")
                serving.should_exit = True
            if hub.failed is not None:
                context.output.note(f"A part of the hub has failed, so it ends: {hub.failed}")
                serving.should_exit = True
        await served
        return FAILED if hub.failed is not None or (worker is not None and worker.poll() is not None) else OK
    finally:
        await store.close()


def _address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _print_address(context: CommandContext, address: str, link: str | None) -> None:
    if context.output.json:
        context.output.document({"address": address, "link": link, "store": shown(context.store), "pid": os.getpid()})
    else:
        context.output.raw(f"windlass serves {shown(context.store)} at {address}")
        if link is not None:
            context.output.raw(f"Sign in, once, within ten minutes: {link}")
    sys.stdout.flush()
