"""What the hub has answered once it answers again: every route, and every refusal a route has, as files.

`RECORD=1 pytest tests/hub/test_recorded.py` writes them anew.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.hub import recording
from tests.hub.recording import Route, World, differences, named, routes_of
from tests.hub.refusals import populate, refusals
from tests.hub.scenes import SCENES

RECORD = bool(os.environ.get("RECORD"))


class Recorder:
    """Asks what was asked, in one loop; what several routes need is made once."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._world: World | None = None
        self._scenes: dict[str, dict[str, list[recording.Exchange]]] = {}

    def close(self) -> None:
        if self._world is not None:
            self._runner.run(self._world.__aexit__())
        self._runner.close()

    def exchanges(self, file: str, route: Route | None) -> list[dict[str, Any]]:
        """Everything that is asked for one file."""
        scened = [exchange for name, (_, files) in SCENES.items() if file in files for exchange in self._scene(name).get(file, ())]
        general = [] if route is None else self._runner.run(self._refusals(route))
        return named([*scened, *general])

    def _scene(self, name: str) -> dict[str, list[recording.Exchange]]:
        if name not in self._scenes:
            self._scenes[name] = self._runner.run(SCENES[name][0]())
            assert set(self._scenes[name]) == set(SCENES[name][1])
        return self._scenes[name]

    async def _refusals(self, route: Route) -> list[recording.Exchange]:
        if self._world is None:
            self._world = await World(open=False).__aenter__()
            await populate(self._world)
        return await refusals(self._world, route)

    def document(self) -> Any:
        return _described()


@cache
def _described() -> Any:
    return asyncio.run(_document())


async def _document() -> Any:
    async with World(tokens=False) as world:
        document = await world.good("GET", "/api/v1/openapi.json", actor=None)
        document["info"]["version"] = "<version>"
        return document


def _routes() -> list[Route]:
    """As they are recorded; before that, as the hub tells."""
    if RECORD:
        routes = routes_of(_described())
        recording.FOLDER.mkdir(exist_ok=True)
        recording.write("routes", [route._asdict() for route in routes])
        return routes
    return recording.recorded_routes()


FILES: dict[str, Route | None] = {route.file: route for route in _routes()}
FILES |= {file: None for _, files in SCENES.values() for file in files if file not in FILES}


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    made.close()


def test_the_openapi_document_is_as_it_was_recorded(recorder: Recorder) -> None:
    document = recorder.document()
    if RECORD:
        (recording.FOLDER / "openapi.json").write_text(recording.indented(document) + "\n", encoding="utf-8")
    kept = recording.read("openapi")
    assert not (told := recording.difference("openapi", kept, document)), told


@pytest.mark.parametrize("file", FILES)
def test_a_route_answers_as_it_was_recorded(recorder: Recorder, file: str) -> None:
    found = recorder.exchanges(file, FILES[file])
    if RECORD:
        recording.write_exchanges(file, found)
    told = differences(file, recording.read_exchanges(file), found)
    assert not told, f"\n{told}"


def test_every_route_has_a_recording(recorder: Recorder) -> None:
    routes = routes_of(recorder.document())
    assert [route._asdict() for route in routes] == recording.read("routes")
    missing = [route.file for route in routes if not (recording.FOLDER / f"{route.file}.json").exists()]
    assert not missing


def test_no_two_exchanges_of_a_file_have_one_name() -> None:
    for file in FILES:
        names = [exchange["name"] for exchange in recording.read(file)]
        assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
