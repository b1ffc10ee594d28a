"""Workers as people see them, counts, and what is wrong; and the verbs that workers themselves ask."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from msgspec import Meta

from windlass.api import port
from windlass.api.gives import DONE, Gives, listed, one, paged
from windlass.api.rows import AFTER_NAME, COUNT, DELETE, GET, POST, ByRow, Param, Verb, verb
from windlass.api.views import STATS, WORKER
from windlass.engine import Finding
from windlass.engine.stats import Stats
from windlass.model import Worker

_PAGE = paged("Workers", "Some workers, and after which name the next page begins.", lambda worker: worker.info.name, workers=WORKER)
_FINDINGS = listed("Diagnosis", "Everything that is wrong, the worst first.", findings=Finding)
_MINUTES = Param("minutes", Annotated[int, Meta(ge=1, le=1_440)], 60, description="How many minutes, up to now.")


class WorkerVerbs(Protocol):
    """Workers and counts."""

    @verb(GET, "/workers", "Workers by name, and what they hold", _PAGE, scope="read", query=(AFTER_NAME, COUNT), repeatable=True)
    async def workers(self, *, after: str = "", count: int = 100) -> list[Worker]:
        """Workers by name, the living and the lately seen, with what they hold now."""
        raise ByRow

    @verb(DELETE, "/workers/{name}", "Forget a worker that is silent", DONE, scope="admin", audit="remove worker {name}")
    async def drop_worker(self, name: str) -> None:
        """Forget a worker that is silent; one that lives registers again."""
        raise ByRow

    @verb(GET, "/stats", "How much there is and was", one(STATS), scope="read", query=(_MINUTES,), repeatable=True)
    async def stats(self, *, minutes: int = 60) -> Stats:
        """The totals, and what there was in the last so many minutes, the current one included."""
        raise ByRow

    @verb(GET, "/doctor", "What is wrong, and what to do about it", _FINDINGS, scope="admin", repeatable=True)
    async def doctor(self) -> list[Finding]:
        """What is wrong, the worst first, and what to do about it."""
        raise ByRow


def _worker(name: str, path: str, summary: str, takes: Any, gives: Any) -> Verb:
    return Verb(name, POST, f"/worker/{path}", summary, Gives(gives), scope="work", takes=takes, lean=True)


PORT = (
    _worker("register", "register", "A worker introduces itself", port.RegisterWorker, DONE.form),
    _worker("begin_life", "lives", "A process of a worker begins; the others of its name", port.BeginLife, port.Lives),
    _worker("end_lives", "lapse", "Processes of a worker have ended: their leases lapse", port.EndLives, port.Lapsed),
    _worker("leave", "leave", "A process of a worker has ended and holds nothing", port.LeaveWorker, DONE.form),
    _worker("claim", "claim", "Take runs, or wait for some", port.ClaimRuns, port.Claimed),
    _worker("recover", "recover", "What a claim brought whose answer was lost", port.RecoverRuns, port.Claimed),
    _worker("start", "start", "Say that runs have begun", port.StartRuns, port.Started),
    _worker("beat", "beat", "Renew leases, tell progress, hear of cancels", port.BeatRuns, port.Beaten),
    _worker("log", "log", "Add log lines", port.AddLines, DONE.form),
    _worker("report", "report", "Say how runs ended", port.ReportRuns, port.Receipts),
    _worker("wait", "wait", "Wait until there may be something to do", port.WaitFor, port.Heard),
    Verb("worker_metrics", POST, "/worker/metrics", "A worker tells what it measures", DONE, scope="work", takes=port.TellMetrics),
)
