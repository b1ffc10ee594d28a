"""A hub's verbs, for programs that have no store of their own: those of the engine, over HTTP."""

from windlass.client.clients import AsyncClient, Client
from windlass.client.events import StreamEvent
from windlass.client.port import RemotePort
from windlass.client.transport import AsyncTransport, BlockingTransport

__all__ = ["AsyncClient", "AsyncTransport", "BlockingTransport", "Client", "RemotePort", "StreamEvent"]
