"""A hub of windlass with the Forge dialect at its root, over a socket, and a producer of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from tests.dialects.forge_hub_stub import SECRET
from tests.served import LeapingClock, ServedHub
from tests.workers import until
from windlass.dialects.forge import Settings, mount


class RealHub(ServedHub):
    """A hub with the dialect at its root, and a producer that has the secret."""

    def __init__(self, store: Path | str) -> None:
        clock = LeapingClock()
        super().__init__(store, clock=clock, dialects=[mount(Settings(secret=SECRET), clock)], root="forge")
        self.http = httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {SECRET}"})

    def native(self, path: str) -> Any:
        """What the API of windlass answers to somebody on this machine."""
        return httpx.get(f"{self.url}api/v1/{path}").json()

    def add(self, type: str, params: Any = None, **fields: Any) -> str:
        body = {"type": type, **fields} | ({} if params is None else {"params": params})
        answer = self.http.post("api/jobs", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.http.get(f"api/jobs/{job_id}").json())

    def done(self, job_id: str, status: str = "completed") -> dict[str, Any]:
        return until(lambda: row if (row := self.job(job_id))["status"] == status else None)

    def take_away(self, job_id: str) -> None:
        """Let time pass until a running job is lost to its agent; a heartbeat that is on its way may still hold it once."""

        def is_lost() -> bool:
            self.reap_after(61_000)
            row = self.job(job_id)
            return bool(row["status"] == "pending" or row["attempts"] > 1)

        until(is_lost)

    def reap_after(self, ms: int) -> None:
        """Let time pass, and reclaim what is over by then."""
        self.clock.leap(ms)  # type: ignore[attr-defined]
        asyncio.run_coroutine_threadsafe(self.hub.engine.lapse(), self.loop).result()
