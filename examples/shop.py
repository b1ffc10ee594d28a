"""A small shop, and the work it leaves to a queue. In this folder, `windlass work shop:app` does that work."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from windlass import App, Context, Fail, Handle, Snooze

HERE = Path(__file__).parent
PAGES = 24

app = App()  # on the store that WINDLASS_STORE or windlass.toml names; else on windlass.db in the current folder


@app.job(name="charge", max_attempts=4, backoff=[1, 2, 4])
async def charge(ctx: Context, order: int, card: str) -> str:
    """Fails while the payment service is down, and is tried again after 1, 2 and 4 seconds."""
    ctx.logger.info("charging order %d", order)
    await asyncio.sleep(0.6)
    if card == "stolen":
        raise Fail("the card was reported stolen", retry=False, code="stolen_card")
    if order % 3 == 0 and ctx.attempt < 3:
        raise ConnectionError("the payment service answered 503")
    # A run may be executed twice. Its id is the same each time, so a real service would be given it to charge only once.
    return f"receipt {ctx.run[-6:]}"


label = app.command("label", ["sh", "label.sh"], cwd=str(HERE), timeout=30)
"""A program in another language, in a process of its own."""


@app.job(name="track")
async def track(ctx: Context, order: int) -> str:
    """Asks where the parcel is, and comes back later. Meanwhile it occupies no worker, and burns no try."""
    if ctx.attempt < 3:
        ctx.logger.info("the parcel of order %d is on its way", order)
        raise Snooze(3)
    return "delivered"


@app.job(name="mail")
async def mail(ctx: Context, to: str, subject: str) -> None:
    """Short work, of which one worker can do a lot at once."""
    ctx.logger.info("%s: %s", to, subject)
    await asyncio.sleep(0.3)


@app.job(name="report", grace=5)
def report(ctx: Context, month: str) -> dict[str, int]:
    """Long work in a thread, which says how far it is. A thread cannot be killed: it has to look whether it should stop."""
    ctx.logger.info("the report for %s begins", month)
    for page in range(1, PAGES + 1):
        ctx.pause(0.25)  # raises when the run is cancelled; between steps of real work, ctx.check() does the same
        ctx.progress(page / PAGES, f"page {page} of {PAGES}")
    return {"pages": PAGES}


@app.job(name="thumbnail", kind="process", memory_limit=1024, timeout=30)
def thumbnail(ctx: Context, picture: str, width: int = 320) -> str:
    """Heavy work in a process of its own, which may take 1,024 MiB and is killed when it does not stop in time."""
    pixels = picture.encode()
    for row in range(1, 21):
        pixels = hashlib.pbkdf2_hmac("sha256", pixels, b"shop", 80_000)
        ctx.progress(row / 20, f"{picture} to {width} px")
    return f"{pixels.hex()[:8]}.png"


@app.every("20s", overlap="skip")
@app.job(name="restock")
async def restock(ctx: Context) -> None:
    """Work by the clock. However many workers there are, one run is made every 20 seconds, and none while the last one is still at it."""
    ctx.logger.info("counting what is left")
    await asyncio.sleep(1)


def place_order(order: int, card: str, to: str) -> Handle[None]:
    """Charge, print the label, follow the parcel, say thanks: each begins when the one before it has succeeded."""
    paid = charge.enqueue(order, card)
    labelled = label.options(after=paid).enqueue(order=order)
    arrived = track.options(after=labelled).enqueue(order)
    return mail.options(after=arrived).enqueue(to, f"thanks for order {order}")
