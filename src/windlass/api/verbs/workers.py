"""Workers, counts and findings; and the verbs of a worker's port."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from msgspec import Meta

from windlass.answers import Finding, Stats
from windlass.api import port
from windlass.api.gives import DONE, Gives, listed, one, paged
from windlass.api.rows import AFTER_NAME, COUNT, DELETE, GET, POST, ByRow, Param, Verb, verb
from windlass.api.views import STATS, WORKER
from windlass.model import WorkerRecord

_PAGE = paged("Workers", "Some workers, and after which name the next page begins.", lambda worker: worker.info.name, workers=WORKER)
_FINDINGS = listed("Diagnosis", "All findings, the worst first.", findings=Finding)
_MINUTES = Param("minutes", Annotated[int, Meta(ge=1, le=1_440)], 60, description="How many minutes, up to now.")


class WorkerVerbs(Protocol):
    """Workers and counts."""

    @verb(GET, "/workers", "Workers by name, and what they hold", _PAGE, scope="read", query=(AFTER_NAME, COUNT))
    async def workers(self, *, after: str = "", count: int = 100) -> list[WorkerRecord]:
        """Workers by name, live and recent, with what they hold now."""
        raise ByRow

    @verb(DELETE, "/workers/{name}", "Remove a silent worker", DONE, scope="admin", audit="remove worker {name}")
    async def drop_worker(self, name: str) -> None:
        """Remove a silent worker; a live one registers again."""
        raise ByRow

    @verb(GET, "/stats", "Counts of runs and attempts", one(STATS), scope="read", query=(_MINUTES,))
    async def stats(self, *, minutes: int = 60) -> Stats:
        """The totals, and the counts of the last minutes, including the current one."""
        raise ByRow

    @verb(GET, "/doctor", "Problems, and what to do about each", _FINDINGS, scope="admin")
    async def doctor(self) -> list[Finding]:
        """Problems, the worst first, and what to do about each."""
        raise ByRow


def _worker(name: str, path: str, summary: str, takes: Any, gives: Any) -> Verb:
    return Verb(name, POST, f"/worker/{path}", summary, Gives(gives), scope="work", takes=takes, lean=True)


PORT = (
    _worker("register", "register", "Register a worker", port.RegisterWorker, DONE.form),
    _worker("begin_life", "lives", "Register a process of a worker; returns the others of its name", port.BeginLife, port.LivesView),
    _worker("end_lives", "lapse", "Lapse the leases of processes that have ended", port.EndLives, port.Lapsed),
    _worker("leave", "leave", "Deregister a process of a worker that holds nothing", port.LeaveWorker, DONE.form),
    _worker("claim", "claim", "Claim runs, or wait for some", port.ClaimRuns, port.Claimed),
    _worker("recover", "recover", "The runs of a claim whose answer was lost", port.RecoverRuns, port.Claimed),
    _worker("start", "start", "Report that runs have started", port.StartRuns, port.Started),
    _worker("beat", "beat", "Renew leases, report progress, learn of cancels", port.BeatRuns, port.RenewedLeases),
    _worker("log", "log", "Add log lines", port.AddLines, DONE.form),
    _worker("store_step", "step", "Store the result of a step", port.StoreStep, port.StoredStep),
    _worker("report", "report", "Report outcomes", port.ReportRuns, port.Receipts),
    _worker("wait", "wait", "Wait for hints", port.WaitFor, port.WokenTopics),
    Verb("worker_metrics", POST, "/worker/metrics", "Report measurements of a worker", DONE, scope="work", takes=port.TellMetrics),
)
