"""What a checker knows of an App."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from windlass import App, Context, Handle, Job, Key, Snooze, State
from windlass.model import Attempt, LogLine, NewRun, Run, Schedule
from windlass.testing import InMemory, in_memory

app = App()


@dataclass
class Order:
    number: int


@app.job()
def plain(to: str, copies: int = 1, *, order: Order | None = None) -> int:
    return len(to) * copies


@app.job(name="awaited", queue="slow", timeout=5, backoff=[1, timedelta(minutes=1)])
async def awaited(to: str, /) -> list[Order]:
    return []


@app.job(kind="process", memory_limit=512, recycle=5)
def with_context(context: Context, to: str) -> Order:
    return Order(len(to))


@app.job(backoff=lambda attempt, error: attempt * 1.5)
async def awaited_with_context(context: Context, *, to: str) -> None: ...


@app.job()
def without_arguments() -> str | Snooze:
    return Snooze(5)


command = app.command("convert", ["convert", "-"], timeout=5)

# The arguments of enqueue are those of the function

assert_type(plain.enqueue("ann"), Handle[int])
assert_type(plain.enqueue("ann", 2, order=Order(1)), Handle[int])
assert_type(plain.enqueue(to="ann", copies=2), Handle[int])
plain.enqueue()  # type: ignore[call-arg]
plain.enqueue(1)  # type: ignore[arg-type]
plain.enqueue("ann", "two")  # type: ignore[arg-type]
plain.enqueue("ann", order={"number": 1})  # type: ignore[arg-type]
plain.enqueue("ann", 2, Order(1))  # type: ignore[call-arg]
plain.enqueue("ann", cc="bob")  # type: ignore[call-arg]
plain.enqueue(None)  # type: ignore[arg-type]

assert_type(awaited.enqueue("ann"), Handle[list[Order]])
awaited.enqueue(to="ann")  # type: ignore[call-arg]

# The context is the worker's to give

assert_type(with_context.enqueue("ann"), Handle[Order])
assert_type(with_context.enqueue(to="ann"), Handle[Order])
assert_type(awaited_with_context.enqueue(to="ann"), Handle[None])
with_context.enqueue()  # type: ignore[call-arg]
with_context.enqueue(1)  # type: ignore[arg-type]
with_context.enqueue(context=1, to="ann")  # type: ignore[call-arg]
awaited_with_context.enqueue("ann")  # type: ignore[call-arg]

without_arguments.enqueue()
without_arguments.enqueue(1)  # type: ignore[call-arg]
command.enqueue(anything=1)

# new is the same without storing it

assert_type(plain.new("ann", copies=2), NewRun)
plain.new(1)  # type: ignore[arg-type]
with_context.new()  # type: ignore[call-arg]
many = app.enqueue_many(plain.new(name) for name in ("ann", "bob"))
assert_type(many, list[Handle[Any]])
app.enqueue_many([plain.enqueue("ann")])  # type: ignore[list-item]

# options checks its words and keeps the arguments

assert_type(plain.options(priority=5, delay=timedelta(hours=1)).enqueue("ann"), Handle[int])
plain.options(at=datetime(2030, 1, 1, tzinfo=UTC), key=Key("k", ttl="forever"), after=[many[0], "id"], after_end="any").enqueue("ann")
plain.options(queue="slow", timeout=5, tags=["gpu"], cores=2, on_exhausted="quarantined").enqueue("ann")
plain.options(priority=5).enqueue(1)  # type: ignore[arg-type]
plain.options(dealy=5)  # type: ignore[call-arg]
plain.options(delay="soon")  # type: ignore[arg-type]
plain.options(at="2030-01-01")  # type: ignore[arg-type]
plain.options(after_end="never")  # type: ignore[arg-type]
plain.options(after=5)  # type: ignore[arg-type]
plain.options(name="other")  # type: ignore[call-arg]

app.job(dealy=5)  # type: ignore[call-arg]
app.job(delay=5)  # type: ignore[call-arg]
app.job(kind="command")  # type: ignore[arg-type]
app.job(on_abort="stop")  # type: ignore[arg-type]
app.command("list", ["ls"], name="other")  # type: ignore[misc]
app.enqueue("anything", {"a": 1}, priority=5, delay=1)
app.enqueue("anything", dealy=5)  # type: ignore[call-arg]

# A schedule takes a function or a job, and leaves a job


@app.cron("0 3 * * *", zone="Europe/Paris", missed="all", max_age=timedelta(hours=2))
def nightly(to: str = "ann") -> int:
    return len(to)


@app.every(timedelta(minutes=15), overlap="skip", payload={"to": "ann"})
@app.job(name="polled")
async def polled(to: str) -> Order:
    return Order(len(to))


@app.every("1h", payload={"to": "ann"})
async def hourly(context: Context, to: str) -> Order:
    return Order(len(to))


assert_type(nightly.enqueue("bob"), Handle[int])
assert_type(hourly.enqueue("bob"), Handle[Order])
hourly.enqueue(1)  # type: ignore[arg-type]
assert_type(polled.enqueue("bob"), Handle[Order])
assert_type(app.every("1h")(plain).enqueue("ann"), Handle[int])
assert_type(app.schedule(plain, every=90, payload={"to": "ann"}, key="k"), Schedule)
assert_type(app.schedule("anything", at=datetime(2030, 1, 1, tzinfo=UTC)), Schedule)
nightly.enqueue(1)  # type: ignore[arg-type]
app.cron(5)  # type: ignore[arg-type]
app.every("1h", overlap="never")  # type: ignore[arg-type]
app.every("1h", missed="some")  # type: ignore[arg-type]
app.every("1h", zoen="UTC")  # type: ignore[call-arg]
app.schedule(plain, evry="1h")  # type: ignore[call-arg]
app.schedule(5, every="1h")  # type: ignore[arg-type]

# What comes back

handle = plain.enqueue("ann")
assert_type(handle.wait(), int)
assert_type(handle.wait(timeout=1.5), int)
assert_type(handle.result, int)
assert_type(handle.id, str)
assert_type(handle.state, State)
assert_type(handle.record, Run)
assert_type(handle.refresh(), Run)
assert_type(handle.cancel("why"), Run)
assert_type(handle.rerun(), Handle[int])
assert_type(handle.attempts(), list[Attempt])
assert_type(handle.logs(), list[LogLine])
assert_type(awaited.enqueue("ann").wait(), list[Order])
assert_type(with_context.enqueue("ann").result, Order)
assert_type(app.run("id"), Handle[Any])
text: str = handle.wait()  # type: ignore[assignment]


def takes_a_job(job: Job[[str], list[Order]]) -> None: ...


takes_a_job(awaited)
takes_a_job(without_arguments)  # type: ignore[arg-type]


async def in_a_loop() -> None:
    await plain.enqueue("ann")  # type: ignore[misc]


# Tests

with in_memory(app) as memory:
    assert_type(memory, InMemory)
    assert_type(memory.drain(scheduled=True), list[Run])
    memory.assert_enqueued(plain, "ann", count=2)
    memory.assert_enqueued("plain")
    memory.assert_enqueued(5)  # type: ignore[arg-type]
