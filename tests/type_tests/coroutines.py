"""What a checker knows of an AsyncApp."""

from __future__ import annotations

from typing import Any, assert_type

from windlass import AsyncApp, AsyncHandle, AsyncJob, Context, Handle
from windlass.model import Attempt, NewRun, Run, Schedule
from windlass.testing import AsyncInMemory, in_memory

app = AsyncApp()


@app.job()
async def awaited(to: str, copies: int = 1) -> int:
    return len(to) * copies


@app.job()
def plain(to: str) -> bytes:
    return to.encode()


@app.job(priority=3)
async def with_context(context: Context, to: str) -> dict[str, int]:
    return {to: context.attempt}


@app.job()
def plain_with_context(context: Context, *, to: str) -> None: ...


@app.cron("@daily")
async def nightly(to: str = "ann") -> int:
    return len(to)


@app.every("1h", payload={"to": "ann"})
def hourly(context: Context, to: str) -> bytes:
    return to.encode()


async def main() -> None:
    assert_type(await hourly.enqueue("bob"), AsyncHandle[bytes])
    assert_type(await nightly.enqueue("bob"), AsyncHandle[int])
    assert_type(await app.every("1h")(plain).enqueue("ann"), AsyncHandle[bytes])
    assert_type(await app.schedule(plain, cron="@daily"), Schedule)
    await app.schedule(plain, cron=5)  # type: ignore[arg-type]
    app.every("1h", zoen="UTC")  # type: ignore[call-arg]
    assert_type(await awaited.enqueue("ann", copies=2), AsyncHandle[int])
    assert_type(await plain.enqueue(to="ann"), AsyncHandle[bytes])
    assert_type(await with_context.enqueue("ann"), AsyncHandle[dict[str, int]])
    assert_type(await plain_with_context.enqueue(to="ann"), AsyncHandle[None])
    await awaited.enqueue()  # type: ignore[call-arg]
    await awaited.enqueue(1)  # type: ignore[arg-type]
    await awaited.enqueue("ann", cc="bob")  # type: ignore[call-arg]
    await plain.enqueue("ann", 2)  # type: ignore[call-arg]
    await with_context.enqueue(1)  # type: ignore[arg-type]
    await with_context.enqueue()  # type: ignore[call-arg]
    assert_type(awaited.new("ann"), NewRun)
    awaited.new(1)  # type: ignore[arg-type]
    await awaited.options(priority=5).enqueue("ann")
    await awaited.options(priority=5).enqueue(1)  # type: ignore[arg-type]
    awaited.options(dealy=5)  # type: ignore[call-arg]
    app.job(dealy=5)  # type: ignore[call-arg]

    handle = await awaited.enqueue("ann")
    assert_type(await handle.wait(5), int)
    assert_type(handle.result, int)
    assert_type(await handle.refresh(), Run)
    assert_type(await handle.rerun(), AsyncHandle[int])
    assert_type(await handle.attempts(), list[Attempt])
    assert_type(await app.run("id"), AsyncHandle[Any])
    assert_type(await app.enqueue_many([awaited.new("ann")]), list[AsyncHandle[Any]])
    number: int = handle.wait()  # type: ignore[assignment]
    del number

    async with app.transaction():
        await awaited.enqueue("ann")
    with app.transaction():  # type: ignore[attr-defined]
        pass

    with in_memory(app) as memory:
        assert_type(memory, AsyncInMemory)
        assert_type(await memory.drain(), list[Run])
        memory.assert_enqueued(awaited, to="ann")


def takes_a_job(job: AsyncJob[[str], bytes], handle: Handle[int]) -> None: ...


async def colours_do_not_mix() -> None:
    takes_a_job(plain, await awaited.enqueue("ann"))  # type: ignore[arg-type]
