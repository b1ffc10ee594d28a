"""Serves an ASGI app with uvicorn, within bounds."""

from __future__ import annotations

import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from windlass.app.working import SWITCH_INTERVAL
from windlass.errors import BadInput
from windlass.hub.connections import bounded
from windlass.hub.core import HubSettings

GRACE = 5  # seconds for answers in flight when the server is stopped
KEEP_ALIVE = 75
BACKLOG = 1_024


SPARE = 200
"""File descriptors that a hub needs besides its connections: those of the store, of webhooks, of the page."""


def room_for(connections: int) -> int:
    """How many of this many connections the process can have, after raising its limit of open files as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= connections + SPARE:
        return connections
    allowed = connections + SPARE if hard == resource.RLIM_INFINITY else min(connections + SPARE, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    return max(1, min(connections, max(soft, allowed) - SPARE))


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio turns Nagle's delay off only for such sockets, and an answer has two parts.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise BadInput(f"Cannot listen on {host}:{port}: {error.strerror}.", hint="Choose another with --host and --port.") from error
    sock.listen(BACKLOG)
    return sock


class HubServer(uvicorn.Server):
    """uvicorn's server, but a handled signal does not end the process: there may be more to shut down."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def server(app: Any, *, connections: int = HubSettings().connections) -> uvicorn.Server:
    """A server that is not started yet."""
    return HubServer(
        uvicorn.Config(
            app,
            http=bounded(connections),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            lifespan="on",
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE,
        )
    )


def serve(app: Any, sock: socket.socket) -> None:
    """Serve until a signal."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    server(app).run(sockets=[sock])
