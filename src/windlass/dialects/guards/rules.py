"""How jobs of this dialect are executed, as options of windlass; and how its errors name what was wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import asdict

from windlass import durations
from windlass import payload as json
from windlass.dialects.guards.errors import InvalidOperationError, InvalidValueError
from windlass.dialects.guards.settings import RESOURCE, Settings
from windlass.engine import checks
from windlass.errors import BadInput, EgressRefused
from windlass.model import JobRecord, Limits, Options, Use

FIRST_DELAY = 10_000
"""Milliseconds before the first retry; each further one takes twice as long."""
DELAYS = 10
"""Delays that grow; any further retry has the last one."""
MAX_PRIORITY = 100


@contextmanager
def valid(member: str) -> Iterator[None]:
    """Name the member of the request in errors about its value; an address is always the webhook's."""
    try:
        yield
    except InvalidOperationError:
        raise
    except BadInput as error:
        name = "webhook_url" if isinstance(error, EgressRefused) else member
        raise InvalidValueError(name, error.message, hint=error.hint) from error


def refuse_others(updates: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """InvalidOperationError for an edit of anything else, or of nothing."""
    if unknown := _others(updates, known):
        raise InvalidOperationError(
            f"Cannot modify {unknown} of {what}: such fields are immutable.", hint=f"These can be set: {', '.join(sorted(known))}."
        )
    if not updates:
        raise InvalidOperationError(f"There is nothing to modify of {what}.", hint=f"Give at least one of {', '.join(sorted(known))}.")


def check_members(value: Mapping[str, Any], known: Sequence[str], member: str, what: str) -> None:
    """The members of an object within a request."""
    if unknown := _others(value, known):
        raise InvalidValueError(member, f"{what} has no {unknown}.", hint=f"Its members are: {', '.join(sorted(known))}.")


def _others(value: Mapping[str, Any], known: Sequence[str]) -> str:
    """The names that are not known, in a short text."""
    return ", ".join(sorted(f"{name!s:.80}" for name in value.keys() - set(known))[:10])


def backoff(executions: int) -> tuple[int, ...]:
    """The delays before the retries: 10, 20, 40 seconds, and so on."""
    return tuple(FIRST_DELAY << n for n in range(min(max(executions - 1, 1), DELAYS)))


def options_of(own: Options, settings: Settings, resources: Sequence[str] = ()) -> Options:
    """The rules for jobs of a definition with these options: what it does not say is as the document says."""
    executions = own.max_attempts or settings.executions(settings.max_attempts)
    formula = own.backoff is None and own.backoff_base is None
    names = dict.fromkeys((RESOURCE, *resources))
    others = tuple(use for use in own.uses or () if use.resource not in names)
    return Options(
        **asdict(own)
        | {
            "queue": settings.queue,
            "max_attempts": executions,
            "backoff": backoff(executions) if formula else own.backoff,
            "retry_place": own.retry_place or "tail",
            "uses": (*(Use(name) for name in names), *others),
        }
    )


def added(record: JobRecord, settings: Settings) -> Options:
    """What a creation adds to the options of its definition: nothing, if this dialect has made that."""
    whole = asdict(options_of(record.options, settings))
    return Options(**{name: value for name, value in whole.items() if value != getattr(record.options, name)})


def check_params(params: Any, member: str = "params") -> dict[str, Any]:
    """Params are an object; none are an empty one."""
    with valid(member):
        if params is not None and not isinstance(params, Mapping):
            raise BadInput(f"{member} must be an object, not {params!r:.80}.", hint='Write {"topic": "sea"}.')
        value = dict(params or {})
        json.encode(value, limit=Limits().payload, what=member)
    return value


def check_integer(value: Any, member: str, low: int, high: int) -> int:
    """A whole number within bounds."""
    with valid(member):
        try:
            return checks.integer(value, member, low, high)
        except BadInput as error:
            raise BadInput(error.message, hint="Correct the number.") from error


def check_boolean(value: Any, member: str) -> bool:
    """Yes or no."""
    if not isinstance(value, bool):
        raise InvalidValueError(member, f"{member} must be true or false, not {value!r:.80}.")
    return value


def check_seconds(value: Any, member: str) -> float:
    """A duration in seconds."""
    try:
        return durations.duration(value) / 1000
    except ValueError as expected:
        raise InvalidValueError(member, f"{member} is {value!r:.80}, which is not {expected}.", hint="Write 30 or 0.5.") from None


def check_priority(value: Any) -> int:
    """A priority: the highest goes first."""
    return check_integer(value, "priority", 0, MAX_PRIORITY)


def check_position(value: Any) -> int:
    """A position in the queue."""
    return check_integer(value, "position", 0, 2**53)


def check_edited(params: Any, member: str = "params") -> dict[str, Any]:
    """Params in an edit, which replace the former ones: null is no way to say that they stay."""
    if params is None:
        raise InvalidValueError(member, f"{member} must be an object, not null.", hint="Leave it out to keep it, or write {}.")
    return check_params(params, member)


def check_names(values: Any, member: str, what: str, known: Collection[str]) -> tuple[str, ...]:
    """A list of names that there are."""
    if unknown := [value for value in check_list(values, member) if value not in known]:
        raise InvalidValueError(member, f"There is no {what} {unknown[0]!r:.80}.", hint=f"There are: {', '.join(known) or 'none'}.")
    return tuple(values)


def check_list(values: Any, member: str) -> Sequence[Any]:
    """A list of anything."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidValueError(member, f"{member} must be a list, not {values!r:.80}.")
    return values


def check_resources(names: Any, settings: Settings) -> None:
    """Resources that the settings have."""
    check_names(names, "resources", "resource", tuple(settings.resources))


def check_max_attempts(policy: Any, settings: Settings) -> int:
    """The number of executions of a retry policy, which is an object or its number."""
    number = policy.get("max_attempts", settings.max_attempts) if isinstance(policy, Mapping) else policy
    if isinstance(policy, Mapping):
        check_members(policy, ("max_attempts",), "retry_policy", "A retry policy")
    return settings.executions(check_integer(settings.max_attempts if number is None else number, "retry_policy", 0, 999))
