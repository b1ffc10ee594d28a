"""How a caller shows its user and organisation: by a token of windlass, by a function that knows the session tokens, or by a mock token."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from windlass.dialects.base import Identity, RequestCaller
from windlass.engine import checks
from windlass.errors import BadInput, WindlassError

_LOG = logging.getLogger("windlass.dialects.so1")

OWN_ORG = "default"
"""The organisation of callers whose token names none."""
MOCK = "clerk"
TOKEN = "wl_"
"""Tokens of windlass begin so; no other function is asked for them."""

Verified = tuple[str, str, str | None] | None
Verify = Callable[[str], Verified | Awaitable[Verified]]
"""The user, the organisation and the address for a token; None if the token is not valid."""


class NotVerified(WindlassError):
    """The check of a token failed, so whether it is valid is not known."""

    code, status = "not_verified", 503


class Session(NamedTuple):
    """A user of an organisation."""

    user: str
    org: str
    email: str | None = None
    admin: bool = False

    @property
    def actor(self) -> str:
        """Its name in the audit, and as a principal; tokens of windlass are called the same."""
        return f"{self.org}/{self.user}"

    def checked(self) -> Session:
        """The session, if its names can be stored."""
        checks.name(self.org, "The organisation")
        checks.name(self.user, "The user")
        checks.name(self.actor, "The organisation with the user")
        return self


def session_of(caller: RequestCaller) -> Session:
    """The session of an admitted caller."""
    if caller.identity is not None:
        session: Session = caller.identity.details
        return session
    org, _, user = caller.actor.partition("/")
    names = (user, org) if user and org else (caller.actor, OWN_ORG)
    return Session(*names, admin=caller.may("admin"))


class Sessions:
    """The credentials of the protocol."""

    def __init__(self, verify: Verify | None, *, mock: bool = False) -> None:
        self._verify, self._mock = verify, mock

    @property
    def required(self) -> bool:
        return self._verify is not None or self._mock

    async def identify(self, headers: Mapping[bytes, bytes], *, local: bool) -> Identity | None:
        """The session of a token that is not one of windlass."""
        token = bearer(headers.get(b"authorization", b"").decode("latin-1"))
        if not token or token.startswith(TOKEN):
            return None
        session = await self._session(token, local=local)
        if session is None:
            return None

        async def still() -> bool:
            try:
                return await self._session(token, local=local) == session
            except NotVerified:  # it is asked again
                return True

        return Identity(session.actor, frozenset({"read", "submit"}), details=session, still=still)

    async def _session(self, token: str, *, local: bool) -> Session | None:
        mocked = mock_session(token) if self._mock and local else None
        return mocked if mocked is not None or self._verify is None else await _verified(self._verify, token)


def bearer(header: str) -> str | None:
    """The token of a header; None if it is not of the form that it must have."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def mock_session(token: str) -> Session | None:
    """The session of clerk_USER_ORG; an organisation may contain further underscores."""
    prefix, _, rest = token.partition("_")
    user, _, org = rest.partition("_")
    session = Session(user, org)
    with suppress(BadInput):
        return session.checked() if prefix == MOCK else None
    return None


async def _verified(verify: Verify, token: str) -> Session | None:
    """The session for a token by a function, which may block."""
    try:
        result: Any = await (verify(token) if inspect.iscoroutinefunction(verify) else to_thread(verify, token))
        verified = await result if inspect.isawaitable(result) else result
        return None if verified is None else Session(*verified).checked()
    except Exception as error:
        _LOG.exception("A token could not be verified.")
        raise NotVerified("Whether the token is valid could not be found out.", hint="Try again in a moment.") from error


def loaded(name: str) -> Verify:
    """The function that module:function names, with the current folder on the path."""
    module, _, function = name.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        verify: Verify = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"The function {name} cannot be imported: {error}.",
            hint="Set verify under [dialects.so1] to module:function, and start windlass in the folder that has the module.",
        ) from error
    return verify
