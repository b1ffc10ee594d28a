"""Answers that only a hub gives."""

from __future__ import annotations

from msgspec import Struct

from windlass.api.views import PREVIEW, RUN, TOKEN, WEBHOOK
from windlass.model import Scope


class CreatedRun(Struct, frozen=True):
    """The answer to a creation."""

    id: str
    created: bool
    pruned: bool = False
    run: RUN.form | None = None  # type: ignore[name-defined]


class CreatedRuns(Struct, frozen=True):
    """The answers to creations, in the order of the request."""

    runs: list[CreatedRun]


class QueueView(Struct, frozen=True):
    """The settings of a queue."""

    name: str
    aging: int | None


class Previews(Struct, frozen=True):
    """The coming instants of a schedule, and its rule in words."""

    in_words: str
    next: list[PREVIEW.form]  # type: ignore[name-defined]


class MadeToken(Struct, frozen=True):
    """A token and its secret, which is shown here and never again."""

    token: TOKEN.form  # type: ignore[name-defined]
    secret: str


class Me(Struct, frozen=True):
    """The caller of a request, as the hub knows it."""

    actor: str
    scopes: list[Scope]
    token: str | None
    worker: str | None


class TicketView(Struct, frozen=True):
    """A text that a browser appends to the address of a stream, `?ticket=...`, because it cannot send a header there."""

    ticket: str
    expires_at: str


class SignedOut(Struct, frozen=True):
    """Whether a session was ended. A token is not a session: a page that signed in with one only forgets it."""

    ended: bool


class MadeWebhook(Struct, frozen=True):
    """An endpoint and its new secret, which is shown once."""

    webhook: WEBHOOK.form  # type: ignore[name-defined]
    secret: str


class Health(Struct, frozen=True):
    """Whether a hub is ready, and which of its parts are not."""

    ready: bool
    missing: tuple[str, ...] = ()
