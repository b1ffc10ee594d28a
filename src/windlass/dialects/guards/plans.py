"""The verbs of what jobs are made from: templates and schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from windlass import cron as crontab
from windlass import defaults
from windlass.dialects.guards.errors import InvalidOperationError, InvalidValueError, TemplateNotFoundError
from windlass.dialects.guards.records import JobTemplate, Schedule
from windlass.dialects.guards.rules import (
    added,
    backoff,
    check_boolean,
    check_edited,
    check_max_attempts,
    check_params,
    check_resources,
    options_of,
    refuse_others,
    valid,
)
from windlass.dialects.guards.settings import RESOURCE, Settings
from windlass.dialects.guards.views import schedule_of, template_of
from windlass.engine import Engine, checks
from windlass.errors import BadInput, DuplicateKey, NotFound
from windlass.model import JobRecord, Life, Options
from windlass.model import Schedule as EngineSchedule

Act = Callable[[str, str], Engine]
"""The engine for one action on a subject, such as ("cancel", "job ..."): a hub audits it."""

TEMPLATE_FIELDS = ("job_type", "default_params", "retry_policy", "description")
"""The members of a template that can be set."""
SCHEDULE_FIELDS = ("template_id", "cron", "cron_expression", "timezone", "enabled", "params", "param_overrides")
"""The members of a schedule that can be set; two of them have two names."""
_PAGE = 1_000


class Plans:
    """Templates, which are definitions of windlass, and schedules, which are its schedules."""

    def __init__(self, engine: Engine, settings: Settings | None = None, *, act: Act | None = None, life: Life | None = None) -> None:
        """`act` returns the engine for one audited action; it is this one where nothing is audited. `life`: the process that dispatches."""
        self.engine, self.settings = engine, settings or Settings()
        self._act: Act = act or (lambda what, subject: engine)
        self._life = life

    async def provide(self) -> None:
        """Store the resources that jobs use, with the capacities of the settings, where they do not exist. Creation does it too."""
        for name, capacity in {RESOURCE: self.settings.capacity, **self.settings.resources}.items():
            await self.engine.add_resource(name, capacity=capacity)

    # Templates

    async def create_template(
        self,
        template_id: str | None = None,
        *,
        name: str | None = None,
        job_type: str | None = None,
        default_params: Mapping[str, Any] | None = None,
        retry_policy: Mapping[str, Any] | int | None = None,
        description: str | None = None,
        resources: Sequence[str] = (),
    ) -> JobTemplate:
        """Create a template, or set the one of this id anew. Its name is its id; without a job type, that is its job type too.

        A retry policy is `{"max_attempts": 3}`, or that number. `resources` are names of the settings' `resources`.
        """
        key = _key(template_id, name, "template_id")
        executions = check_max_attempts(retry_policy, self.settings)
        check_resources(resources, self.settings)
        await self.provide()
        options = options_of(Options(max_attempts=executions), self.settings, resources)
        return await self._define(key, job_type, check_params(default_params, "default_params"), options, description, "create")

    async def _define(
        self, name: str, job_type: str | None, params: dict[str, Any], options: Options, description: str | None, what: str
    ) -> JobTemplate:
        await self._refuse_of_other_queue(name)
        with valid("job_type"):
            checks.name(job_type or name, "A job type")
        with valid("description"):
            checks.description(description, self.engine.limits)
        with valid("default_params"):
            engine = self._act(what, f"template {name}")
            record = await engine.define(name, handler=job_type, payload=params, options=options, description=description)
        return template_of(record, self.settings)

    async def _refuse_of_other_queue(self, name: str) -> None:
        """InvalidOperationError for a job of another queue: it can be used as a template, but is changed where it was defined."""
        record = await self.engine.find_job(name)
        if record is None or record.handler is None:
            return
        if (queue := record.options.queue or defaults.QUEUE) != self.settings.queue:
            raise InvalidOperationError(
                f"The job {name} is defined for the queue {queue}, not for {self.settings.queue}.",
                hint=f"Create a template with another id and the job_type {record.handler}.",
            )

    async def get_template(self, template_id: str) -> JobTemplate:
        """A template; TemplateNotFoundError where there is none."""
        return template_of(await self._definition(template_id), self.settings)

    async def _definition(self, template_id: Any) -> JobRecord:
        try:
            record = await self.engine.find_job(template_id)
        except BadInput:
            record = None
        if record is None or record.handler is None:
            raise TemplateNotFoundError(f"There is no template {template_id!r:.80}.")
        return record

    async def list_templates(self) -> list[JobTemplate]:
        """All templates, by id."""
        records: list[JobRecord] = []
        while page := await self.engine.jobs(after=records[-1].name if records else "", count=_PAGE):
            records += page
        return [template_of(record, self.settings) for record in records if record.handler is not None]

    async def update_template(self, template_id: str, /, **updates: Any) -> JobTemplate:
        """Edit a template: job_type, default_params, retry_policy, description. Existing jobs stay as they are."""
        record = await self._definition(template_id)
        refuse_others(updates, TEMPLATE_FIELDS, "a template")
        options = record.options
        if "retry_policy" in updates:
            executions = check_max_attempts(updates["retry_policy"], self.settings)
            follows = options.backoff == backoff(options.max_attempts or 0)
            options = replace(options, max_attempts=executions, backoff=backoff(executions) if follows else options.backoff)
        params = check_edited(updates["default_params"], "default_params") if "default_params" in updates else record.payload
        description = updates.get("description", record.description)
        return await self._define(record.name, updates.get("job_type", record.handler), params, options, description, "update")

    # Schedules

    async def create_schedule(
        self,
        template_id: str,
        cron: str,
        *,
        timezone: str = "UTC",
        enabled: bool = True,
        params: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Schedule:
        """Create a schedule, whose id is its name, or a new one. Its params are laid over the template's.

        Of the instants that were missed while nothing ran, the latest one makes a job.
        """
        record = await self._definition(template_id)
        check_rule(cron, timezone)
        check_boolean(enabled, "enabled")
        key = _key(self.engine.clock.new_id() if name is None else name, None, "name")
        await self.provide()
        with valid("params"):
            overrides, options = check_params(params), self._scheduled(record)
            try:
                schedule = await self._act("create", f"schedule {key}").schedule(
                    key, record.name, cron=cron, zone=timezone, payload=overrides, options=options, enabled=enabled, new=True
                )
            except DuplicateKey as error:
                raise InvalidValueError(
                    "name", f"There is a schedule {key!r} already.", hint="Choose another name, or update it."
                ) from error
        return schedule_of(schedule)

    def _scheduled(self, record: JobRecord) -> Options:
        """The options of a schedule. It names the queue in any case, which tells whose schedule it is."""
        return replace(added(record, self.settings), queue=self.settings.queue)

    async def get_schedule(self, schedule_id: str) -> Schedule:
        """A schedule; NotFound where there is none."""
        return schedule_of(await self._schedule(schedule_id))

    async def _schedule(self, schedule_id: Any) -> EngineSchedule:
        try:
            schedule = await self.engine.get_schedule(schedule_id)
        except (BadInput, NotFound):
            schedule = None
        if schedule is None or schedule.options.queue != self.settings.queue:
            raise NotFound(f"There is no schedule {schedule_id!r:.80}.", hint="List the schedules to see those there are.")
        return schedule

    async def list_schedules(self) -> list[Schedule]:
        """The schedules of this queue, by id."""
        schedules: list[EngineSchedule] = []
        while page := await self.engine.schedules(after=schedules[-1].key if schedules else "", count=_PAGE):
            schedules += page
        return [schedule_of(schedule) for schedule in schedules if schedule.options.queue == self.settings.queue]

    async def update_schedule(self, schedule_id: str, /, **updates: Any) -> Schedule:
        """Edit a schedule: template_id, cron, timezone, enabled, params. Existing jobs stay as they are."""
        schedule = await self._schedule(schedule_id)
        refuse_others(updates, SCHEDULE_FIELDS, "a schedule")
        expression = updates.get("cron", updates.get("cron_expression", schedule.expr))
        check_rule(expression, zone := updates.get("timezone", schedule.zone))
        fields = {"expr": expression, "zone": zone, "enabled": check_boolean(updates.get("enabled", schedule.enabled), "enabled")}
        if "template_id" in updates:
            record = await self._definition(updates["template_id"])
            fields |= {"job": record.name, "options": self._scheduled(record)}
        for member in updates.keys() & {"params", "param_overrides"}:
            fields["payload"] = check_edited(updates[member], member)
        with valid("params"):
            return schedule_of(await self._act("update", f"schedule {schedule.key}").set_schedule(schedule.key, **fields))

    async def delete_schedule(self, schedule_id: str) -> None:
        """Remove a schedule. Its jobs stay."""
        key = (await self._schedule(schedule_id)).key
        await self._act("delete", f"schedule {key}").remove_schedule(key)


def check_rule(expression: Any, zone: Any) -> None:
    """A cron expression with five fields, and a zone that is known here."""
    for member, value in (("timezone", zone), ("cron", expression)):
        if not isinstance(value, str):
            raise InvalidValueError(member, f"{member} must be a text, not {value!r:.80}.")
    with valid("timezone"):
        crontab.parse("cron", "* * * * *", zone)
    with valid("cron"):
        crontab.parse("cron", expression, zone)


def _key(identity: str | None, name: str | None, member: str) -> str:
    """The id of a record that is called by it."""
    if identity is not None and name not in (None, identity):
        raise InvalidValueError(
            "name", f"The name {name!r:.80} is not the id {identity!r:.80}.", hint="A template is called by its id; give one."
        )
    with valid(member):
        return checks.name(identity if identity is not None else name, member)
