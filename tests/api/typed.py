"""What the type checker proves: the engine, and what a hub is asked with, have every verb with the same arguments and answers."""

from __future__ import annotations

from windlass.api.verbs import Verbs
from windlass.client import AsyncClient, RemotePort
from windlass.engine import Engine


def engine_has_the_verbs(engine: Engine) -> Verbs:
    return engine


def port_has_the_verbs(port: RemotePort) -> Verbs:
    return port


def client_has_the_verbs(client: AsyncClient) -> Verbs:
    return client
