"""Input is checked here, once, before anything is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from windlass import egress
from windlass import payload as json
from windlass.defaults import PATCHABLE
from windlass.durations import SHORTEST_KEEP
from windlass.engine import fits
from windlass.errors import BadInput, NotEditable, TooLarge
from windlass.model import FOREVER, Failure, Key, Limits, Options, Requires, Solver, State, Use

LONGEST_SCOPE = 128
"""Characters of the scope of a key."""

_NAME = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}")
_KEY = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")
_is_checksum = re.compile(r"[0-9A-Fa-f]{64}").fullmatch
_is_id = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_PRIORITY = 2**31 - 1
FAR_FUTURE = 7_258_118_400_000  # the year 2200: positions still fit into 63 bits


def name(text: Any, what: str) -> str:
    """A text of 1 to 128 printable characters."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise BadInput(
            f"{what} must be a text of 1 to 128 printable characters, not {text!r:.80}.",
            hint="Choose a short name without control characters.",
        )
    return text


def identifier(text: Any, what: str) -> str:
    """An id or a token in the form that windlass generates."""
    if not isinstance(text, str) or not _is_id(text):
        raise BadInput(
            f"{what} {text!r:.80} is not an id.",
            hint="Ids have 1 to 64 letters, digits, '-' and '_'; copy it from the answer that gave it.",
        )
    return text


def hold(seq: Any, token: Any) -> None:
    """A worker's hold on a run, as a claim gave it."""
    identifier(token, "The token")
    integer(seq, "seq", 0, 2**63 - 1)


def integer(value: Any, what: str, low: int, high: int) -> int:
    """A whole number within bounds; True and '3' are not numbers."""
    if type(value) is not int or not low <= value <= high:
        raise BadInput(
            f"{what} must be a whole number from {low:,} to {high:,}, not {value!r:.80}.", hint="Durations and times are in milliseconds."
        )
    return value


def maybe(value: Any, what: str, low: int, high: int) -> int | None:
    """As integer, or None when not given."""
    return None if value is None else integer(value, what, low, high)


def choice(value: Any, what: str, among: Sequence[str]) -> None:
    """One of a few words, or None when not given."""
    if value is not None and value not in among:
        raise BadInput(f"{what} must be one of {', '.join(among)}, not {value!r:.80}.", hint="Correct the word.")


def states(chosen: Iterable[State | str], what: str) -> tuple[State, ...]:
    """Some states, each once, in the order of a run's life."""
    try:
        members = {State(state) for state in chosen}
    except (TypeError, ValueError):
        raise BadInput(f"{chosen!r:.80} are not states.", hint=f"Choose from {', '.join(State)}.") from None
    if not members:
        raise BadInput(f"{what} needs at least one state.", hint=f"Choose from {', '.join(State)}.")
    return tuple(state for state in State if state in members)


def count(items: Sequence[Any], what: str, limit: int) -> None:
    """At most `limit` items in one call."""
    if len(items) > limit:
        raise TooLarge(f"{len(items):,} {what} in one call; the limit is {limit:,}.", hint=f"Send them in slices of at most {limit:,}.")


def names(items: tuple[str, ...] | None, what: str) -> None:
    """A tuple of names, or None when not given."""
    if items is not None and not isinstance(items, tuple):
        raise BadInput(f"{what} must come in a tuple, not as {items!r:.80}.", hint="Write ('a', 'b').")
    for item in items or ():
        name(item, what)


def editable(fields: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    """Refuse an edit of nothing, or of anything else than these fields."""
    unknown = sorted(fields.keys() - set(names))
    if unknown or not fields:
        raise BadInput(f"Cannot modify {', '.join(unknown) or 'nothing'} of {what}.", hint=f"These can be set: {', '.join(names)}.")


def patchable(fields: Mapping[str, Any]) -> None:
    """Refuse an edit of what cannot change while a run waits."""
    if unknown := sorted(fields.keys() - set(PATCHABLE)):
        hint = f"These can be patched while it waits: {', '.join(PATCHABLE)}."
        raise NotEditable(f"Cannot modify {', '.join(unknown)} of a run.", hint=hint)


def requires(requirements: Requires | None) -> None:
    """The requirements that a job may have of a worker."""
    if requirements is not None:
        names(requirements.tags, "A tag")
        integer(requirements.cores, "cores", 0, 2**20)
        integer(requirements.memory, "memory", 0, 2**40)


def uses(items: tuple[Use, ...] | None, limits: Limits) -> None:
    """The resources that a job may occupy, each at most once."""
    if items is None:
        return
    kind(items, "uses", tuple)
    count(items, "resources of one job", limits.uses)
    for use in items:
        kind(use, "A use", Use)
        name(use.resource, "A resource's name")
        integer(use.weight, "weight", 1, 2**31 - 1)
        if use.per is not None:
            name(use.per, "The payload's field that limits")
            if use.weight != 1:
                raise BadInput(
                    f"{use.resource!r} is limited per {use.per!r} and has a weight.", hint="Leave the weight out, or leave `per` out."
                )
    if len({use.resource for use in items}) < len(items):
        raise BadInput("A resource is used twice by one job.", hint="Name each resource once; give a weight to use more of it.")


def kind(value: Any, what: str, expected: type) -> None:
    """An instance of the expected record type; objects that merely resemble it are refused."""
    if not isinstance(value, expected):
        raise BadInput(f"{what} must be {expected.__name__}, not {value!r:.80}.", hint=f"Make one with {expected.__name__}(...).")


def options(chosen: Options, limits: Limits) -> Options:
    """Every option within its bounds."""
    kind(chosen, "options", Options)
    if chosen.queue is not None:
        name(chosen.queue, "A queue's name")
    maybe(chosen.priority, "priority", -_PRIORITY, _PRIORITY)
    maybe(chosen.max_attempts, "max_attempts", 1, limits.attempts)
    maybe(chosen.max_requeues, "max_requeues", 0, limits.attempts)
    if chosen.attempt_per_claim is not None:
        kind(chosen.attempt_per_claim, "attempt_per_claim", bool)
    maybe(chosen.backoff_base, "backoff_base", 1, limits.duration)
    for field in ("max_runtime", "timeout", "grace"):
        maybe(getattr(chosen, field), field, 0, limits.duration)
    if chosen.keep is not None:
        keep(chosen.keep, "keep", limits)
    choice(chosen.on_exhausted, "on_exhausted", ("failed", "quarantined"))
    choice(chosen.retry_place, "retry_place", ("keep", "tail"))
    if chosen.backoff is not None:
        if not isinstance(chosen.backoff, tuple):
            raise BadInput(f"backoff must be a tuple of delays, not {chosen.backoff!r:.80}.", hint="Write (1_000, 10_000).")
        count(chosen.backoff, "delays of a backoff", limits.attempts)
        for delay in chosen.backoff:
            integer(delay, "A delay of the backoff", 0, limits.duration)
    requires(chosen.requires)
    uses(chosen.uses, limits)
    if chosen.solver is not None:
        solver(chosen.solver)
    return chosen


def keep(duration: Any, what: str, limits: Limits) -> int:
    """The milliseconds for which ended runs are kept: a minute at least, in which their workers may report once more."""
    if duration == "forever":
        return FOREVER
    if type(duration) is not int or not SHORTEST_KEEP <= duration <= limits.duration:
        raise BadInput(
            f'{what} must be {SHORTEST_KEEP:,} to {limits.duration:,} milliseconds, or "forever", not {duration!r:.80}.',
            hint="Keep ended runs for a minute at least: until then their workers may ask what became of a report.",
        )
    return duration


def solver(program: Solver) -> None:
    """A program that a run brings along: its location, and its checksum if it has one."""
    kind(program, "solver", Solver)
    egress.parse(program.url)
    checksum: Any = program.checksum
    if checksum is None:
        return
    if not isinstance(checksum, str) or not _is_checksum(checksum):
        raise BadInput(
            f"A solver's checksum must be 64 hexadecimal digits, not {checksum!r:.80}.", hint="Write what `sha256sum FILE` prints."
        )


def meta(facts: Any, limits: Limits) -> str | None:
    """The JSON text of the facts that a creation gives of its run, or None when not given."""
    if facts is None:
        return None
    if not isinstance(facts, dict):
        raise BadInput(f"meta must be a JSON object, not {facts!r:.80}.", hint='Write {"name": value}.')
    return json.encode(facts, limit=limits.meta, what="meta")


def reason(text: Any) -> str:
    """The reason for an action, in at most a thousand characters."""
    if not isinstance(text, str) or not 0 < len(text) <= 1_000:
        raise BadInput("A reason must be a text of 1 to 1,000 characters.", hint="Say it shorter.")
    return _clean(text, 4_000)


def key_scope(text: str) -> str:
    """A scope of a key, short enough to be stored."""
    return text if len(text) <= LONGEST_SCOPE else f"{text.partition(':')[0]}:{blake2b(text.encode(), digest_size=32).hexdigest()}"


def key_name(text: Any) -> str:
    """The text of a key."""
    if not isinstance(text, str) or not _KEY.fullmatch(text):
        raise BadInput(f"A key must be a text of 1 to 255 printable characters, not {text!r:.80}.", hint="Hash what is longer.")
    return text


def key(record: Key, limits: Limits) -> Key:
    """A key whose time to live is known."""
    kind(record, "key", Key)
    key_name(record.name)
    if name(record.scope, "A key's scope") == "claim":
        raise BadInput("The scope 'claim' is windlass's own.", hint="Choose another scope for the key.")
    choice(record.on_duplicate, "on_duplicate", ("return", "compare"))
    if record.content is not None:
        name(record.content, "A key's content")
    if isinstance(record.ttl, str):
        choice(record.ttl, "A key's ttl", ("unfinished", "forever"))
    else:
        integer(record.ttl, "A key's ttl", 1, limits.duration)
    return record


def instant(at: Any, what: str) -> int:
    """A time that can be stored and ordered."""
    return integer(at, what, 0, FAR_FUTURE)


def json_text(text: Any, what: str, limit: int) -> None:
    """A JSON text, as far as can be checked without parsing it, or None."""
    if text is None:
        return
    if not isinstance(text, str) or "\0" in text or not (text.isascii() or encodable(text)):
        raise BadInput(f"{what} must be a JSON text, not {text!r:.80}.", hint="Encode the value as JSON first.")
    if len(text) > limit or (not text.isascii() and len(text.encode()) > limit):
        raise TooLarge(f"{what} has more than {limit:,} bytes.", hint="Keep large data elsewhere and return a reference to it.")


def encodable(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which no database takes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def schemas(fingerprints: Mapping[str, str], limits: Limits) -> dict[str, str]:
    """The schema fingerprints of a worker, by job."""
    kind(fingerprints, "schemas", Mapping)
    count(list(fingerprints), "jobs of one worker", limits.schemas)
    return {name(job, "A job's name"): identifier(schema, "The schema") for job, schema in fingerprints.items()}


def schema(document: Any, limits: Limits) -> str:
    """The text of a JSON Schema that can be stored: an object, nested no deeper than a payload may be."""
    kind(document, "A job's schema", dict)
    json.check(document, "A job's schema", limit=limits.schema)
    if len((text := fits.text_of(document)).encode()) > limits.schema:
        raise TooLarge(f"A job's schema has more than {limits.schema:,} bytes.", hint="Leave it out: then every payload is accepted.")
    return text


def description(text: Any, limits: Limits) -> str | None:
    """The words for people about a definition, or None when not given."""
    if text is None:
        return None
    kind(text, "A description", str)
    json.check(text, "A description", limit=limits.payload)
    if len(text.encode()) > limits.description:
        raise TooLarge(f"A description has more than {limits.description:,} bytes.", hint="Say it shorter, and link to the rest.")
    return str(text) or None


def failure(error: Failure, limit: int) -> Failure:
    """An error cut to the stored size; its beginning says what happened, so the end of the detail is dropped."""
    message, detail = _clean(error.message, limit // 4), error.detail and _clean(error.detail, limit // 2)
    return Failure(name(error.code, "An error's code"), message, detail)


def _clean(text: Any, limit: int) -> str:
    if not isinstance(text, str):
        raise BadInput(f"A message must be a text, not {text!r:.80}.", hint="Convert it with str().")
    kept = text.replace("\0", "\ufffd").encode("utf-8", "replace")[:limit]
    return kept.decode("utf-8", "ignore")


def line(text: Any, limit: int) -> str:
    """A log line cut to the stored size."""
    return _clean(text, limit)
