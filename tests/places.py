"""Where those who call and those who work meet: stores, and hubs on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.served import ServedHub
from tests.tiers import corners, long
from tests.workers import DEADLINE
from windlass import App
from windlass.hub import HubSettings
from windlass.model import Slot
from windlass.store.base import run_sync

T = TypeVar("T")

AGES = 24 * 3600
PLACES = ("file", "postgres", "hub on file", "hub on postgres")
HUBS = ("hub on file", "hub on postgres")


class Place:
    """A store, or hubs on it."""

    def __init__(self, store: str, *, hub: bool) -> None:
        self.store, self._closing = store, ExitStack()
        self.hubs = list[ServedHub]()
        if hub:
            self.add_hub()
        self.app = self.new_app()

    def add_hub(self) -> ServedHub:
        """Another hub on the same store."""
        self.hubs.append(ServedHub(self.store, HubSettings(longest_wait=AGES * 1000)))
        self._closing.callback(self.hubs[-1].stop)
        return self.hubs[-1]

    @property
    def address(self) -> str:
        return self.hubs[0].url if self.hubs else self.store

    def new_app(self, address: str | None = None) -> App:
        return self._closing.enter_context(App(address or self.address))

    def slots(self, state: str | None = None) -> list[Slot]:
        return [slot for slot in run_sync(self.app.verbs.slots()) if state in (None, slot.state)]

    def close(self) -> None:
        self._closing.close()


@contextmanager
def open_place(request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    """The place that a test is asked for; a file where it does not say."""
    kind: str = getattr(request, "param", "file")
    store = request.getfixturevalue("emptied_postgres") if kind.endswith("postgres") else str(folder / "windlass.db")
    place = Place(store, hub=kind.startswith("hub"))
    try:
        yield place
    finally:
        place.close()


at_both_ends = pytest.mark.parametrize("place", ["file", "hub on postgres"], indirect=True)
"""The shortest way and the longest, where what lies between makes no difference."""
everywhere = pytest.mark.parametrize("place", corners(PLACES), indirect=True)
over_http = pytest.mark.parametrize("place", [pytest.param("hub on file", marks=long), "hub on postgres"], indirect=True)


def by_each(library: Sequence[T], http: Sequence[T], name: Callable[[T], str]) -> list[pytest.ParameterSet]:
    """Each way to call at each place that has it; in the short tier those of the library on a file, all others through a hub."""
    return [
        pytest.param(place, way, id=f"{place}, {name(way)}", marks=() if place == (PLACES[0] if way in library else PLACES[-1]) else long)
        for place in PLACES
        for way in (*library, *(http if place in HUBS else ()))
    ]


@contextmanager
def beside(call: Callable[[], None]) -> Iterator[None]:
    """Somebody who calls on another thread while the block runs, and must be through soon after it."""
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(DEADLINE)
    assert not thread.is_alive()
    if wrong:
        raise wrong[0]
