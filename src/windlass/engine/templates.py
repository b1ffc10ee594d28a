"""Job templates: what a job gives to each of its runs; and this process's cache of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from msgspec.structs import asdict

from windlass import defaults
from windlass import payload as json
from windlass.model import FOREVER, JobRecord, Options, Policy, State
from windlass.needs import needs_of
from windlass.store.creation import Kind
from windlass.store.records import needs_text
from windlass.store.rows import policy_text

MAX_DOCUMENTS = 4 * 1024 * 1024
"""Characters of schemas that a process remembers."""

_POLICY_FIELDS = Policy.__struct_fields__


class Template(NamedTuple):
    """What a job gives to each of its runs, computed once per revision."""

    queue: str
    requires: str
    priority_key: int
    max_attempts: int
    max_runtime: int | None
    policy: str | None
    amounts: tuple[int, int]  # of cores and memory
    keep: int | None

    @classmethod
    def of(cls, options: Options, handler: str | None = None) -> Self:
        fields = {name: value for name, value in asdict(options).items() if value is not None}
        policy = Policy(**{name: fields[name] for name in _POLICY_FIELDS if name in fields}, handler=handler)
        needs = needs_of(options, handler)
        return cls(
            queue=fields.get("queue", defaults.QUEUE),
            requires=needs_text(needs),
            priority_key=-fields.get("priority", 0),
            max_attempts=fields.get("max_attempts", defaults.ATTEMPTS),
            max_runtime=fields.get("max_runtime") or None,
            policy=policy_text(policy),
            amounts=(needs.cores, needs.memory),
            keep=FOREVER if options.keep == "forever" else options.keep,
        )

    def kind(self, state: State, job: str, lane: int, retry_of: str | None) -> Kind:
        """The common values of runs that are created from it."""
        rules = self.max_attempts, self.max_runtime, self.policy
        return Kind(state.value, job, self.queue, lane, self.priority_key, *rules, retry_of, keep=self.keep)


class Usual(NamedTuple):
    """The kind of a job's runs that have nothing of their own, under a revision of the controls and a definition of the job.

    Their lane existed then; where it was removed since, the controls have another revision, and the store refuses the creation.
    """

    controls: int
    job: JobRecord
    kind: Kind


class KnownJobs:
    """This process's cache of job definitions; engines derived for principals share it."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[JobRecord, Template]] = {}
        self.usual: dict[tuple[State, str, Options | None, str | None], Usual] = {}
        self.documents: dict[str, dict[str, Any]] = {}  # schemas of jobs, by fingerprint
        self._size = 0

    def remember(self, job: JobRecord) -> Template:
        """Cache the current definition of a job."""
        template = Template.of(job.options, job.own_handler)
        self.jobs[job.name] = (job, template)
        return template

    def forget_jobs(self) -> None:
        """Clear the cache of definitions after one has changed."""
        self.jobs, self.usual = {}, {}

    def learn(self, texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Cache schemas of jobs; all others are dropped where the cache becomes too large."""
        documents = {schema: json.decode(text) for schema, text in texts.items()}
        self._size += sum(map(len, texts.values()))
        if self._size > MAX_DOCUMENTS:
            self.documents, self._size = {}, sum(map(len, texts.values()))
        self.documents |= documents
        return documents
