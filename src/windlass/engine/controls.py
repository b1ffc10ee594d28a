"""This process's copy of pauses, queues and resources."""

from __future__ import annotations

from windlass.defaults import MAX_WAIT
from windlass.model import Lane, Pause, Resource
from windlass.store.records.controls import ControlSettings


class Controls:
    """This process's copy of pauses, queues and resources. A claim or a creation that finds a newer revision reads them again."""

    def __init__(self) -> None:
        self.rev = -1
        self.pauses: dict[tuple[str, str], Pause] = {}
        self.resources: dict[str, Resource] = {}
        self._aging: dict[str, int] = {}

    def learn(self, settings: ControlSettings) -> None:
        """Replace the copy; an older answer that arrives late is ignored."""
        if settings.rev < self.rev:
            return
        self.pauses = {(pause.scope, pause.name): pause for pause in settings.pauses}
        self.resources = {resource.name: resource for resource in settings.resources}
        self._aging = {queue.name: queue.aging for queue in settings.queues}
        self.rev = settings.rev

    def paused(self, lane: Lane) -> list[Pause]:
        """The pauses that keep the runs of a lane from being claimed."""
        if not self.pauses:
            return []
        scopes = (("system", ""), ("queue", lane.queue), ("job", lane.job))
        return [pause for place in scopes if (pause := self.pauses.get(place)) is not None]

    def resource(self, name: str) -> Resource:
        """A resource by name; one without settings has capacity 1."""
        return self.resources.get(name) or Resource(name, 1, (), MAX_WAIT, 0, 0)

    def aging(self, queue: str) -> int | None:
        """Milliseconds of waiting that are worth one step of priority in a queue; None: priorities are never overtaken."""
        return self._aging.get(queue)
