"""What each route answers when all is well, and what it refuses because of what is there."""

from __future__ import annotations

from tests.hub.recording import Scene
from tests.hub.scenes_front import MORE as FRONT
from tests.hub.scenes_people import MORE as PEOPLE
from tests.hub.scenes_runs import MORE as RUNS
from tests.hub.scenes_work import MORE as WORK

SCENES: dict[str, tuple[Scene, list[str]]] = RUNS | WORK | PEOPLE | FRONT
