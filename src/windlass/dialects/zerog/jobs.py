"""Definitions of jobs, and the signatures of their webhooks: `jobs.define`, `jobs.sign_webhook_body`, `jobs.verify_webhook`."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256
from typing import Any, get_origin

from msgspec import Struct

from windlass.app.signatures import check_type, plain, typed
from windlass.dialects.zerog.errors import BadSignature, InvalidValue
from windlass.dialects.zerog.words import MAX_ATTEMPTS
from windlass.engine import checks
from windlass.errors import BadInput
from windlass.model import Limits
from windlass.worker.handlers import BadPayload

PREFIX = "sha256="

Backoff = Callable[[int], float]
"""Milliseconds before the next attempt, by the number of the one that failed."""


class JobDefinition(Struct, frozen=True):
    """A job: its name, its handler, what it takes and returns, and how often it is tried."""

    name: str
    handler: Callable[..., Any]
    input: Any = Any
    output: Any = Any
    max_attempts: int = MAX_ATTEMPTS
    backoff_ms: Backoff | None = None

    def to_stored(self, value: Any) -> Any:
        """An input as it is stored; InvalidValue unless the job takes it."""
        try:
            values = plain(value)
            fitted(values, self.input)
        except Exception as error:  # a check may raise anything
            raise InvalidValue(f"The input does not fit the job {self.name!r}: {_sentence(error)}", hint="Nothing was enqueued.") from error
        return values

    def to_input(self, value: Any) -> Any:
        """A stored input as the handler gets it."""
        try:
            return fitted(value, self.input)
        except Exception as error:
            hint = "Enqueue it again as it should be, or deploy the code that it is for."
            raise BadPayload(f"The input does not fit the job {self.name!r}: {_sentence(error)}", hint=hint) from error

    def to_result(self, value: Any) -> Any:
        """What the handler returned, as it is stored; InvalidValue if it is not what the job returns."""
        try:
            values = plain(value)
            fitted(values, self.output)
        except Exception as error:
            raise InvalidValue(f"The job {self.name!r} does not return that: {_sentence(error)}", hint="Correct its handler.") from error
        return values


def define(
    *,
    name: str,
    handler: Callable[..., Any],
    input: Any = None,
    output: Any = None,
    max_attempts: int = MAX_ATTEMPTS,
    backoff_ms: Backoff | None = None,
) -> JobDefinition:
    """Define a job. `input` and `output` are types, or functions that raise for what they do not take; None takes everything."""
    checks.name(name, "A job's name")
    checks.integer(max_attempts, "max_attempts", 1, Limits().attempts)
    _check_function(handler, "handler")
    _check_kind(input, "input")
    _check_kind(output, "output")
    if backoff_ms is not None:
        _check_function(backoff_ms, "backoff_ms")
    return JobDefinition(name, handler, Any if input is None else input, Any if output is None else output, max_attempts, backoff_ms)


def _sentence(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def _check_function(value: Any, what: str) -> None:
    if not callable(value):
        raise BadInput(f"{what} must be a function, not {value!r:.80}.", hint="Give it a function.")


def _check_kind(kind: Any, what: str) -> None:
    """A type that values can be read as, or a function. One that names a type that is defined further on is not looked at yet."""
    if kind is None or _is_function(kind):
        return
    try:
        check_type(kind)
    except TypeError as error:
        hint = "Give it a type that can be read from JSON, a function that raises, or None."
        raise BadInput(f"{what} is {kind!r:.80}, which is neither a type nor a function: {_sentence(error)}", hint=hint) from error
    except NameError:
        return


def fitted(values: Any, kind: Any) -> Any:
    """Plain values as a type, or as a function returns them; one that returns nothing has only checked them."""
    if not _is_function(kind):
        return values if kind is Any else typed(values, kind)
    fit = kind(values)
    return values if fit is None else fit


def _is_function(kind: Any) -> bool:
    return callable(kind) and not isinstance(kind, type) and get_origin(kind) is None and kind is not Any


def sign_webhook_body(body: str | bytes, secret: str) -> str:
    """The signature of a webhook's body, as its header has it."""
    return PREFIX + hmac.digest(secret.encode(), _bytes(body), sha256).hex()


def verify_webhook(body: str | bytes, signature: str, secret: str) -> bool:
    """Whether a body was signed with the secret; the signature may lack its prefix. Never raises."""
    try:
        digest = bytes.fromhex(signature.removeprefix(PREFIX))
        return bool(secret) and hmac.compare_digest(digest, hmac.digest(secret.encode(), _bytes(body), sha256))
    except Exception:  # anything that is not a signature
        return False


def require_webhook(body: str | bytes, signature: str, secret: str) -> None:
    """Raise an error unless a body was signed with the secret."""
    if not verify_webhook(body, signature, secret):
        raise BadSignature("The webhook is not signed with this secret.", hint="Answer 401, and compare the secrets of both sides.")


def _bytes(body: str | bytes) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(memoryview(body))
