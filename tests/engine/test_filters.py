"""Lists by any filters: each is what a filter in Python leaves of the whole list, page by page, also while runs are made and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import Harness
from windlass.answers import Page
from windlass.engine import lists
from windlass.errors import BadInput, NotFound
from windlass.machine import ENDED
from windlass.model import Failure, Key, Member, NewGroup, NewRun, Options, Requires, Run, State

HOUR = 3_600_000
MESSAGES = ("Connection refused", "no route: 50% lost_!", 'Zeile\n"zwei" é É')


class Known:
    """Runs of all kinds, and what is known of each beside its record."""

    def __init__(self, h: Harness) -> None:
        self.h = h
        self.keys: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.groups: dict[str, str] = {}
        self.begin = h.clock.now()
        for key in ("nightly", "weekly"):
            h(h.engine.schedule(key, f"report {key}", every="1h"))
        h.sweep(after=2 * HOUR)
        self.schedules = {run.id: run.job.split()[1] for run in self.whole()}
        assert set(self.schedules.values()) == {"nightly", "weekly"}
        for job, error in (("mail", "boom"), ("bill", "Timeout")):
            h.define(job, max_attempts=1)
            for queue in ("default", "slow"):
                self._lives(job, queue, error)
        self._others()

    def create(self, job: str, queue: str, key: str | None = None, tag: str | None = None, **fields: Any) -> str:
        options = Options(queue=queue, requires=None if tag is None else Requires(tags=(tag,)))
        fields |= {} if key is None else {"key": Key(key, scope=f"{job} {queue}")}
        run_id = self.h.create(job, options=options, **fields)
        self.keys |= {} if key is None else {run_id: key}
        self.tags |= {} if tag is None else {run_id: tag}
        self.h.clock.advance(1_000)
        return run_id

    def _lives(self, job: str, queue: str, error: str) -> None:
        """A run in each state; claims take only from this job and queue, and nothing is left queued for them."""
        h = self.h
        can: dict[str, Any] = {"jobs": (job,), "queues": (queue,), "tags": ("gpu",)}
        for message in MESSAGES:
            self.create(job, queue, key=f"Key-{len(self.keys)}_%")
            h.fail(h.started(**can), Failure(error, message))
            h.clock.advance(HOUR)
        self.create(job, queue, tag="gpu")
        h.succeed(h.started("w2", **can))
        h(h.engine.skip(self.create(job, queue), reason="holiday"))
        h(h.engine.cancel(self.create(job, queue)))
        self.create(job, queue)
        h.started("w3", **can)
        self.create(job, queue, tag="gpu")
        h.claimed("w4", **can)
        later = self.create(job, queue, due_at=h.clock.now() + 400 * HOUR)
        self.create(job, queue, after=(later,))
        self.create(job, queue, key="open")
        self.create(job, queue, tag="gpu")

    def _others(self) -> None:
        h = self.h
        for _ in range(2):
            group = h(h.engine.create_group(NewGroup((Member(NewRun("mail", {})), Member(NewRun("bill", {}))))))
            self.groups |= {run.id: group.id for run in h(h.engine.members(group.id))}

    def whole(self) -> list[Run]:
        return pages(self.h)

    def matches(self, run: Run, filters: dict[str, Any]) -> bool:
        """The same in Python."""
        return all(self._matches(run, name, value) for name, value in filters.items())

    def _matches(self, run: Run, name: str, value: Any) -> Any:
        match name:
            case "state":
                return run.state == value
            case "states":
                return run.state in value
            case "group":
                return self.groups.get(run.id) == value
            case "schedule":
                return self.schedules.get(run.id) == value
            case "key":
                return self.keys.get(run.id) == value
            case "tag":
                return self.tags.get(run.id) == value
            case "error":
                return run.error is not None and run.error.code == value
            case "created_since":
                return run.created_at >= value
            case "created_before":
                return run.created_at < value
            case "ended_since":
                return run.finished_at is not None and run.finished_at >= value
            case "ended_before":
                return run.finished_at is not None and run.finished_at < value
            case "text":
                low, message = lowered(value), "" if run.error is None else lowered(run.error.message)
                of_key = lowered(self.keys.get(run.id, "")).startswith(low)
                return run.id.startswith(low) or run.id.endswith(low) or low in message or of_key
            case _:
                return getattr(run, name) == value


def lowered(text: str) -> str:
    return "".join(one.lower() if one.isascii() else one for one in text)


def pages(h: Harness, between: Callable[[], object] = lambda: None, **filters: Any) -> list[Run]:
    """A list from its first page to its last."""
    page: Page = h(h.engine.runs(**filters))
    runs = list(page.runs)
    while page.cursor is not None:
        between()
        page = h(h.engine.runs(**filters, cursor=page.cursor))
        runs += page.runs
    return runs


@pytest.fixture
def known(h: Harness) -> Known:
    return Known(h)


def one_of_each(known: Known) -> Iterator[tuple[str, Any]]:
    """Every filter, each with several values."""
    whole = known.whole()
    instants = [known.begin, whole[len(whole) // 2].created_at, whole[0].created_at + 1]
    yield from (("state", state) for state in State)
    yield from (("states", states) for states in (ENDED, (State.QUEUED, State.FAILED), (State.RUNNING, State.CLAIMED), tuple(State)))
    yield from (("job", job) for job in ("mail", "bill", "none"))
    yield from (("queue", queue) for queue in ("default", "slow", "none"))
    yield from (("worker", worker) for worker in ("w1", "w2", "w3", "none"))
    yield from (("group", group) for group in sorted(set(known.groups.values())))
    yield from (("schedule", key) for key in ("nightly", "weekly"))
    yield from (("key", key) for key in ("Key-0_%", "open", "key-0_%"))
    yield from (("tag", tag) for tag in ("gpu", "none"))
    yield from (("error", code) for code in ("boom", "Timeout", "timeout"))
    yield from ((name, at) for name in ("created_since", "created_before", "ended_since", "ended_before") for at in instants)
    texts = (whole[0].id, whole[3].id[-8:], whole[3].id[-8:].upper(), whole[5].id[:12], "key-", "REFUSED", "50%", "_!", "é", "\\", "x' --")
    yield from (("text", text) for text in texts)


def in_order(runs: list[Run], filters: dict[str, Any]) -> list[str]:
    """The ids in the order of the list with these filters, of runs that are the newest first."""
    states = {state for state in State if filters.get("state") in (None, state) and state in filters.get("states", State)}
    bounds = filters.keys() & {"ended_since", "ended_before"}
    of_own_queue = filters.get("queue", "default") != "default" and "job" not in filters
    if "group" in filters:
        pass
    elif bounds or (states <= set(ENDED) and not of_own_queue):
        runs = sorted(runs, key=lambda run: (-(run.finished_at or 0), -run.seq))
    elif states == {State.SCHEDULED}:
        runs = sorted(runs, key=lambda run: (run.due_at, run.seq))
    return [run.id for run in runs]


ORDERED = ({"state"}, {"job", "state"}, {"queue", "state"}, {"job", "queue", "state"})
"""Filters of lists with an order of their own, for some states."""


def check(known: Known, filters: dict[str, Any], **how: Any) -> None:
    expected = in_order([run for run in known.whole() if known.matches(run, filters)], filters)
    listed = [run.id for run in pages(known.h, **filters, **how)]
    states = {state for state in State if filters.get("state") in (None, state) and state in filters.get("states", State)}
    names = {"state" if name == "states" else name for name in filters}
    if names in ORDERED and len(states) == 1 and not states & set(ENDED):
        assert sorted(listed) == sorted(expected), filters
    else:
        assert listed == expected, filters


def test_every_filter_is_the_filter_over_the_whole_list(known: Known) -> None:
    for name, value in one_of_each(known):
        check(known, {name: value})


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), count=st.sampled_from((1, 3, 100)), walk=st.sampled_from((2, 7, 10_000)), look=st.sampled_from((1, 5, 200)))
def test_any_combination_is_the_filter_over_the_whole_list(known: Known, data: st.DataObject, count: int, walk: int, look: int) -> None:
    values = list(one_of_each(known))
    filters = dict(data.draw(st.lists(st.sampled_from(values), max_size=4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "WALK", walk)
        patch.setattr(lists, "FIRST_LOOK", look)
        check(known, filters, count=count)


def test_what_does_not_change_is_listed_once_while_runs_are_made_and_end(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    h = known.h
    monkeypatch.setattr(lists, "WALK", 3)
    monkeypatch.setattr(lists, "FIRST_LOOK", 3)
    stay = {run.id for run in known.whole()}

    def meanwhile() -> None:
        h.create("mail")
        h.clock.advance(1_000)
        h.fail(h.started("w9", jobs=("mail",), queues=("default",)))

    for filters in (
        {"text": "refused"},
        {"job": "mail", "states": [State.FAILED]},
        {"queue": "default", "error": "boom"},
        {"states": ENDED},
    ):
        expected = [run.id for run in known.whole() if run.id in stay and known.matches(run, filters)]
        listed = [run.id for run in pages(h, meanwhile, **filters, count=2)]
        assert len(listed) == len(set(listed)), filters
        assert sorted(run for run in listed if run in stay) == sorted(expected), filters


def test_a_list_is_the_same_however_its_filters_are_given(known: Known) -> None:
    """Also its cursors: the next page may be asked for in another way."""
    h = known.h
    for state in State:
        assert pages(h, states=[state]) == pages(h, state=state)
        assert pages(h, states=[state], job="mail") == pages(h, job="mail", state=state)
    first = h(h.engine.runs(job="mail", state="failed", count=1))
    second = h(h.engine.runs(states=["failed"], job="mail", count=1, cursor=first.cursor))
    assert [*first.runs, *second.runs] == h(h.engine.runs(state="failed", job="mail", count=2)).runs


def test_a_page_that_ends_early_says_how_far_it_has_looked(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    h, whole = known.h, known.whole()
    monkeypatch.setattr(lists, "WALK", 4)
    page = h(h.engine.runs(key="none"))
    assert (page.runs, page.looked_at) == ([], whole[3].created_at)
    page = h(h.engine.runs(text="nothing at all", states=ENDED))
    assert page.looked_at == sorted((run.finished_at or 0 for run in whole), reverse=True)[3]
    assert h(h.engine.runs(count=1)).looked_at is h(h.engine.runs(text=whole[0].id, count=1)).looked_at is None


def test_a_list_since_an_instant_ends_there(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not go on to the beginning of the store, page by page."""
    h, whole = known.h, known.whole()
    monkeypatch.setattr(lists, "WALK", 5)
    asked = 0

    def count_up() -> None:
        nonlocal asked
        asked += 1

    for _ in range(40):
        h.create("mail")
    since = h.clock.now() + 2 * HOUR
    h.clock.advance(3 * HOUR)
    new = [h.create("mail") for _ in range(3)]
    assert [run.id for run in pages(h, count_up, created_since=since)] == new[::-1]
    assert pages(h, count_up, created_since=since, states=ENDED) == []
    assert asked == 0
    oldest = [run.id for run in whole if run.created_at == whole[-1].created_at]
    assert [run.id for run in pages(h, created_before=whole[-1].created_at + 1)] == oldest


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"text": ""}, "The text '' cannot be looked for."),
        ({"text": "a\0"}, "cannot be looked for."),
        ({"text": "\ud800"}, "cannot be looked for."),
        ({"text": "a" * 257}, "cannot be looked for."),
        ({"text": 5}, "cannot be looked for."),
        ({"states": ()}, "A list by states needs at least one state."),
        ({"state": "lost"}, "are not states"),
        ({"worker": ""}, "The filter worker must be a text"),
        ({"key": "a\n"}, "A key must be a text"),
        ({"created_since": -1}, "created_since"),
        ({"ended_before": "now"}, "ended_before"),
        ({"group": "a b"}, "is not an id"),
        ({"colour": "red"}, "Runs have no filter 'colour'."),
    ],
)
def test_filters_that_make_no_sense_are_refused(h: Harness, filters: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        h(h.engine.runs(**filters))
    assert message in refused.value.message


def test_a_group_or_a_schedule_that_is_not_there_is_named(h: Harness) -> None:
    for look in (h.engine.runs(group="none"), h.engine.runs(schedule="none")):
        with pytest.raises(NotFound, match="none"):
            h(look)
