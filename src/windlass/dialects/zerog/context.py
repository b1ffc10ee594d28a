"""What a handler gets: its input, the signal that it should stop, and the steps that it has done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from windlass.dialects.zerog.errors import AbortError
from windlass.dialects.zerog.words import JobMetadata
from windlass.worker import Context


class AbortSignal:
    """Whether a handler should stop, and why: cancel, abort, drain or lost."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._event: asyncio.Event | None = None

    @property
    def aborted(self) -> bool:
        return self._context.why is not None

    @property
    def reason(self) -> str | None:
        return self._context.why

    async def wait(self) -> None:
        """Wait until the handler should stop."""
        self._event = self._event or asyncio.Event()
        if not self.aborted:
            await self._event.wait()

    def raise_if_aborted(self) -> None:
        """Raise AbortError if the handler should stop."""
        if self.aborted:
            raise AbortError(f"The job was aborted: {self.reason}")

    def wake(self) -> None:
        """Called by the runner, in its event loop, when the handler should stop."""
        if self._event is not None:
            self._event.set()


class JobContext:
    """One attempt of a job, for its handler."""

    def __init__(self, context: Context, input: Any, metadata: JobMetadata, signer: Any) -> None:
        self._context, self.input, self.metadata, self.signer = context, input, metadata, signer
        self.signal = AbortSignal(context)

    @property
    def job_id(self) -> str:
        """The job's id, the same for all its attempts: the key for effects that must happen once."""
        return self._context.run

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._context.attempt

    def step(self, key: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once for this job: a later attempt gets the stored result. To be awaited in a coroutine."""
        return self._context.step(key, function, *args, **kwargs)

    def steps(self) -> Any:
        """The results of the steps that are done, by their keys. To be awaited in a coroutine."""
        return self._context.steps()
