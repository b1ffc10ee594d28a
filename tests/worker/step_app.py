"""Jobs of every kind that charge once. Functions in processes must be at the top level of a module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass import App, Context

app = App(":memory:")
OPTIONS: Any = {"max_attempts": 3, "backoff": (0,)}


def charge(path: str, *, amount: int) -> dict[str, Any]:
    """Charge a card: an effect that must not happen twice."""
    with Path(path).open("a") as ledger:
        ledger.write(f"{amount}\n")
    return {"amount": amount, "pair": (1, 2)}


async def charge_later(path: str, *, amount: int) -> dict[str, Any]:
    return charge(path, amount=amount)


def pays(ctx: Context, path: str) -> Any:
    receipt = ctx.step("charge", charge, path, amount=5)
    if ctx.attempt < 3:
        raise RuntimeError("crashed after the charge")
    return [receipt, ctx.step("charge", charge, path, amount=9), ctx.steps()]


async def pays_async(ctx: Context, path: str) -> Any:
    receipt = await ctx.step("charge", charge_later if ctx.attempt == 1 else charge, path, amount=5)
    if ctx.attempt < 3:
        raise RuntimeError("crashed after the charge")
    return [receipt, await ctx.step("charge", charge, path, amount=9), await ctx.steps()]


in_thread = app.job(name="thread", **OPTIONS)(pays)
in_loop = app.job(name="async", **OPTIONS)(pays_async)


@app.job(name="process", kind="process", **OPTIONS)
def in_process(ctx: Context, path: str) -> Any:
    return pays(ctx, path)


@app.job(name="async process", kind="process", **OPTIONS)
async def loop_in_process(ctx: Context, path: str) -> Any:
    return await pays_async(ctx, path)
