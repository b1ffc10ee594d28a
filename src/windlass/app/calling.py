"""Handlers called here and now, without a run: for direct calls, whose caller waits for the result."""

from __future__ import annotations

from typing import Any

from windlass import payload as json
from windlass.app.jobs import Definition
from windlass.errors import BadInput, WindlassError
from windlass.machine import Fail, Refuse, Skip, Succeed
from windlass.model import Failure, Limits
from windlass.worker.context import Call, Context, Unstored
from windlass.worker.executors import ThreadExecutor
from windlass.worker.handlers import BadPayload


class CallFailed(WindlassError):
    """The handler of a direct call did not succeed."""

    code, status = "call_failed", 500

    def __init__(self, job: str, failure: Failure) -> None:
        end = "" if failure.message.endswith((".", "!", "?")) else "."
        super().__init__(f"{job} failed: {failure.code}: {failure.message}{end}", hint="Correct its cause, and call again.")
        self.failure = failure


class BadCall(BadInput):
    """The payload of a direct call does not fit its handler."""

    code, status = "bad_payload", 422


class DirectCall:
    """One call of a job's handler on a thread; its log and its progress are discarded."""

    def __init__(self, job: Definition[..., Any], payload: Any) -> None:
        if job.handler.call is None:
            raise BadInput(f"{job.name!r} is a command; it cannot be called directly.", hint="Create a job, and wait for its end.")
        text = json.encode(payload, limit=Limits().payload, what="The payload")
        call = Call("direct", job.name, 1, job.app.clock.nonce(), text, 1, 0, job.app.clock.now())
        self._job, self._context = job, Context(call, Unstored())
        self._executor = ThreadExecutor(job.handler, self._context)

    def run(self) -> Any:
        """The result, once the handler has returned; blocks its thread."""
        report = self._executor.run()
        match report:
            case Succeed(output=output):
                return None if output is None else json.decode(output)
            case Refuse(error=failure) | Fail(error=failure):
                raise self._error(failure)
            case Skip(reason=reason):
                raise CallFailed(self._job.name, Failure(report.name, reason or "The handler has skipped the call."))
            case _:
                raise CallFailed(self._job.name, Failure(report.name, "A direct call cannot be put off."))

    def _error(self, failure: Failure) -> WindlassError:
        _, error = self._context.failed_with or (None, None)
        if isinstance(error, BadPayload):  # its hint is for a run that waits
            return BadCall(error.message, hint="Correct the payload.")
        return CallFailed(self._job.name, failure)

    def ask_to_stop(self, why: str) -> None:
        """Ask the handler to stop, which it can ignore; from any thread."""
        self._executor.ask_to_stop(why)
