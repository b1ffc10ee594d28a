"""The rules of this process for the deliveries that it sends."""

from __future__ import annotations

from typing import Protocol

from windlass.model import Notify


class DeliveryRules(Protocol):
    """The rules of a process that sends deliveries: its formats, and the addresses to which it sends nothing."""

    def check_address(self, url: str) -> None:
        """Refuse an address to which nothing would be sent, as far as that is known without resolving its name."""

    def check_format(self, format: str, secret: str | None) -> None:
        """Refuse an endpoint of a format that is not known, or with a secret that the format cannot sign with."""

    def check_notify(self, notify: Notify, *, trusted: bool) -> None:
        """Refuse an address that a run names, its format, or its events."""


class Sending:
    """The rules of this process. Without any, it sends nothing, and only the form of an address is checked."""

    def __init__(self) -> None:
        self.rules: DeliveryRules | None = None
        self.followed: frozenset[str] = frozenset()  # formats of which runs may name addresses; replaced, since threads share it
