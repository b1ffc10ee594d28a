"""The verbs on the caller's thread."""

from __future__ import annotations

from windlass.dialects.facades import Facade, Location, function, method
from windlass.dialects.so1.sessions import OWN_ORG, Session
from windlass.dialects.so1.settings import Settings
from windlass.dialects.so1.verbs import OrgJobs


class So1(Facade[OrgJobs]):
    """The jobs of an organisation in a store, for one of its users."""

    def __init__(self, store: Location | None = None, *, user: str = "local", org: str = OWN_ORG, settings: Settings | None = None) -> None:
        super().__init__(store)
        self._session, self._settings = Session(user, org).checked(), settings or Settings()

    @property
    def verbs(self) -> OrgJobs:
        return OrgJobs(self._app.engine, self._session, self._settings)

    create_job = method(OrgJobs.create_job)
    get_job = method(OrgJobs.get_job)
    list_jobs = method(OrgJobs.list_jobs)
    cancel_job = method(OrgJobs.cancel_job)


create_job = function(So1, So1.create_job)
get_job = function(So1, So1.get_job)
list_jobs = function(So1, So1.list_jobs)
cancel_job = function(So1, So1.cancel_job)
