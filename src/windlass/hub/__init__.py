"""The hub: windlass over HTTP."""

from windlass.hub.core import Hub, HubSettings
from windlass.hub.server import HubApp

__all__ = ["Hub", "HubApp", "HubSettings"]
