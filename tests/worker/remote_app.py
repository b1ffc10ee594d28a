"""An app that says nothing of where its runs are: what `windlass work tests.worker.remote_app:app --hub URL` serves."""

from __future__ import annotations

from windlass import App, Context

app = App()
elsewhere = App("elsewhere.db")


@app.every("1h", key="hourly")
@app.job(name="tick")
def tick() -> None: ...


@app.job(name="greet")
def greet(ctx: Context, name: str) -> str:
    ctx.logger.info("Greeting %s.", name)
    return f"Hello, {name}!"
