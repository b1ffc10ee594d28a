"""An app whose jobs read what became of those before them, in every way a handler can run."""

from __future__ import annotations

from typing import Any

from windlass import App, Context

app = App()


@app.job()
def double(n: int) -> int:
    return 2 * n


def _read(context: Context) -> list[Any]:
    return [result.value for result in context.results()]


async def _read_async(context: Context) -> list[Any]:
    return [result.value async for result in context.results()]


@app.job(kind="thread")
def in_thread(context: Context) -> list[Any]:
    return _read(context)


@app.job(kind="async")
async def in_loop(context: Context) -> list[Any]:
    return await _read_async(context)


@app.job(kind="process")
def in_process(context: Context) -> list[Any]:
    return _read(context)


@app.job(kind="process")
async def in_process_loop(context: Context) -> list[Any]:
    return await _read_async(context)


@app.job(kind="async", max_attempts=1)
async def blocking(context: Context) -> list[Any]:
    return _read(context)
