"""What stands between a worker and its hub: refusals that must not end the worker, and ends that must not be retried."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from windlass.api.problems import Problem
from windlass.client.events import follow
from windlass.client.port import RemotePort
from windlass.client.transport import ClientRequest, HubResponse, NotAStream
from windlass.clock import ManualClock
from windlass.engine import Outcome
from windlass.errors import HubUnreachable, StoreBusy, StoreUnreachable, TooLarge, TooSlow
from windlass.machine import Succeed
from windlass.model import Receipt
from windlass.store.base import run_sync

LIMIT = 2_000


class Between:
    """A proxy that lets only small requests pass to a hub that takes every report; or one that always says the same."""

    def __init__(self, always: HubResponse | None = None, status: int = 413) -> None:
        self.always, self.status, self.calls = always, status, 0

    async def send(self, request: ClientRequest) -> HubResponse:
        self.calls += 1
        if self.always is not None:
            return self.always
        if len(request.body or b"") > LIMIT:
            return HubResponse(self.status, {}, b"<html>no</html>")
        runs = [outcome["run"] for outcome in msgspec.json.decode(request.body or b"")["outcomes"]]
        return HubResponse(200, {}, msgspec.json.encode({"receipts": [{"run": run, "state": "succeeded"} for run in runs]}))

    async def stream(self, request: ClientRequest) -> AsyncIterator[bytes]:
        for part in (b"",):
            if self.always is None:
                raise NotAStream(HubResponse(204, {}, b""))
            yield part

    async def pause(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


def outcome(n: int, size: int) -> Outcome:
    return Outcome(f"run{n}", Succeed(token="t" * 22, output=f'"{"x" * size}"'), n)


@pytest.mark.parametrize(("status", "kind"), [(413, TooLarge), (408, TooSlow)])
def test_a_parcel_that_is_refused_is_sent_in_halves_and_only_what_nobody_takes_is_given_up(status: int, kind: type[Exception]) -> None:
    port = RemotePort(Between(status=status), ManualClock())
    answers = run_sync(port.report_many([outcome(n, 3_000 if n == 5 else 300) for n in range(12)]))
    assert [type(answer) for answer in answers] == [kind if n == 5 else Receipt for n in range(12)]
    assert [answer.run for answer in answers if isinstance(answer, Receipt)] == [f"run{n}" for n in range(12) if n != 5]


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("store_broken", 503, StoreUnreachable),
        ("store_failed", 503, StoreUnreachable),
        ("schema_mismatch", 503, StoreUnreachable),
        ("store_full", 507, StoreUnreachable),
        ("limit_reached", 429, StoreBusy),
    ],
)
def test_a_hub_in_trouble_is_one_that_will_be_back(code: str, status: int, kind: type[Exception]) -> None:
    problem = Problem(f"urn:windlass:error:{code}", code, status, "It cannot.", code, "Try again.")
    port = RemotePort(Between(HubResponse(status, {}, msgspec.json.encode(problem))), ManualClock())
    with pytest.raises(kind):
        run_sync(port.report_many([outcome(1, 1)]))


def test_a_stream_that_was_over_already_ends() -> None:
    async def read() -> list[Any]:
        told = follow(Between(), ManualClock(), "/x", {}, after="9-1", patience=5.0, until_end=True)
        return [one async for one in told]

    assert run_sync(read()) == []


def test_patience_begins_when_a_stream_breaks_off_and_not_with_its_last_word() -> None:
    clock, tries = ManualClock(), list[int]()

    class Gone(Between):
        async def stream(self, request: ClientRequest) -> AsyncIterator[bytes]:
            tries.append(clock.monotonic())
            if len(tries) == 1:
                yield b": hello\n\n"
                clock.advance(60_000)  # long silence, and then the hub is killed
            raise HubUnreachable("gone", hint="")

        async def pause(self, seconds: float) -> None:
            clock.advance(round(seconds * 1000))

    async def read() -> None:
        async for _ in follow(Gone(), clock, "/x", {}, after=None, patience=5.0, until_end=False):
            pass

    with pytest.raises(HubUnreachable):
        run_sync(read())
    assert len(tries) > 3
    assert tries[-1] - 60_000 >= 5_000
