"""The webhooks of the protocol: which changes are sent, their body, and its signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass import payload as json
from windlass.dialects.zerog.jobs import sign_webhook_body
from windlass.dialects.zerog.words import JobState, state_of
from windlass.engine import Engine, checks
from windlass.model import Attempt, Delivery, Entry, Run, State
from windlass.webhooks import Format

EVENT = "state-change"
DELAYS = (250, 500)
MAX_RETRIES = 10
TIMEOUT = 10.0
LIMIT = 64 * 1024
"""Bytes of a body; a result that does not fit is left out, and the receiver can ask for the job's record."""
PART = 50
"""Entries whose runs are read at once, because each may have an output of 1 MiB."""
_HELD = (State.CLAIMED, State.RUNNING)
_ENDS = (State.SUCCEEDED, State.FAILED, State.QUARANTINED)
_FAILURES = ("fail", "lapse")


class WebhookConfig(Struct, frozen=True):
    """The address that is notified of a runner's jobs, and the secret that signs it. `retries` is how often a delivery is tried again.

    `allow` and `plain_http` are for receivers in an inner network, as in windlass.toml.
    """

    url: str
    secret: str
    retries: int = len(DELAYS)
    allow: tuple[str, ...] = ()
    plain_http: bool = False

    def __post_init__(self) -> None:
        checks.kind(self.secret, "secret", str)  # without one, the engine would make one that no receiver knows
        checks.integer(self.retries, "retries", 0, MAX_RETRIES)

    def __repr__(self) -> str:  # the secret must not be logged
        return f"WebhookConfig({self.url!r}, ...)"

    @property
    def delays(self) -> tuple[int, ...]:
        """Milliseconds before each further try."""
        return tuple(DELAYS[0] << n for n in range(self.retries))


class StateChange(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The body of a webhook."""

    job_id: str
    job_name: str
    previous_state: JobState
    new_state: JobState
    ts: int
    result: Any = None
    error: str | None = None


def event_of(entry: Entry) -> str | None:
    """The event of an entry: after each completion or failure of an execution. None for creations, claims and cancels."""
    if entry.before not in _HELD:
        return None
    return EVENT if entry.state in _ENDS or entry.move in _FAILURES else None


async def bodies_of(engine: Engine, entries: Sequence[Entry]) -> list[str]:
    """The bodies for these entries, as they are sent and signed."""
    runs = {run.id: run for run in await engine.get_many(list(dict.fromkeys(entry.run for entry in entries)))}
    attempts = await engine.attempts_of(list(runs.values()))
    return [_body(entry, runs.get(entry.run), attempts.get(entry.run, ())) for entry in entries]


def _body(entry: Entry, run: Run | None, attempts: Sequence[Attempt]) -> str:
    """The body of one entry; without result and error if the run was removed meanwhile."""
    assert entry.before is not None
    change = StateChange(entry.run, entry.job, state_of(entry.before), state_of(entry.state), entry.at)
    if entry.state is State.SUCCEEDED:
        result = None if run is None or run.output is None else json.decode(run.output)
        text = _encode(replace(change, result=result))
        return (text if len(text) <= LIMIT else _encode(change)).decode()
    errors = [attempt.error.message for attempt in attempts if attempt.n == entry.attempt and attempt.error is not None]
    return _encode(replace(change, error=errors[0] if errors else None)).decode()


_encode = msgspec.json.Encoder().encode


def headers_of(delivery: Delivery, body: bytes, secrets: tuple[str, ...], now: int) -> Mapping[str, str]:
    """The headers of a delivery. There is room for one signature: that of the newest secret, if there is any."""
    headers = {"content-type": "application/json", "x-0gkit-job-id": delivery.run, "x-0gkit-event": EVENT}
    return headers | {"x-0gkit-signature": sign_webhook_body(body, secrets[0])} if secrets else headers


FORMAT = Format(
    name="zerog",
    events=(EVENT,),
    event=event_of,
    bodies=bodies_of,
    headers=headers_of,
    delays=DELAYS,
    timeout=TIMEOUT,
    raw_secret=True,
    part=PART,
)
