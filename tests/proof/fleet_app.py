"""What the workers of the fleet do: next to nothing, many times."""

from __future__ import annotations

import asyncio

from windlass import AsyncApp

app = AsyncApp()


@app.job(max_attempts=100, backoff=(0.05,))
async def step(n: int) -> int:
    await asyncio.sleep(0.005)
    return n
