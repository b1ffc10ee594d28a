"""The verbs of a hub, and two that take long: wait for the end of a run, follow changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from windlass.client.events import StreamEvent, follow
from windlass.client.requester import place
from windlass.client.verbs import RemoteVerbs
from windlass.engine import checks
from windlass.machine import ENDED
from windlass.model import Run, State


class StreamingVerbs(RemoteVerbs):
    """What both clients offer."""

    async def wait(self, run_id: str, timeout: float | None = None) -> Run:
        """The run once it has ended; TimeoutError when it takes longer."""
        began = self.clock.monotonic()
        while (run := await self.get(run_id)).state not in ENDED:
            waited = (self.clock.monotonic() - began) / 1000
            if timeout is not None and waited >= timeout:
                raise TimeoutError(f"Run {run_id} is still {run.state} after {timeout} s; it continues.")
            longest = 1.0 if timeout is None else min(1.0, timeout - waited)
            await self.transport.pause(max(0.005, min(waited / 10, longest)))  # the answer is at most a tenth late
        return run

    def events(
        self,
        run_id: str | None = None,
        *,
        job: str | None = None,
        queue: str | None = None,
        state: State | str | None = None,
        after: str | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Changes from now on, or after the id of an event; with a run, its changes and log lines until its end."""
        path = place("events") if run_id is None else place("runs", checks.identifier(run_id, "The run"), "events")
        filters = {"job": job, "queue": queue, "state": state}
        query: dict[str, str | int] = {name: text for name, text in filters.items() if text is not None}
        return follow(self.transport, self.clock, path, query, after=after, patience=self._patience, until_end=run_id is not None)
