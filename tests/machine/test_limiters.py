"""Who may pass, by the pure rules: no store, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from windlass.limiters import (
    SKEW,
    Candidate,
    Limiter,
    Need,
    Selector,
    is_keyed,
    keys_text,
    lacks,
    limiter_key,
    limits_by_key,
    needs,
    parts_of,
    window,
)
from windlass.model import Rate, Resource, Use

NOW = 1_767_225_600_000
MAX_WAIT = 60_000
LANES: dict[tuple[tuple[str, bool, int], ...], int] = {}  # runs of one lane use the same
KEYS = ("cpu", "gpu", limiter_key("customer", "1"), limiter_key("customer", "2"))


def resource(name: str = "gpu", capacity: int | None = 1, *rates: Rate) -> Resource:
    return Resource(name, capacity, rates, MAX_WAIT, 0, 0)


def limiter(key: str = "gpu", capacity: int | None = 1, held: int = 0, rates: Sequence[Rate] = (), now: int = NOW, **tats: int) -> Limiter:
    return Limiter(key, resource(parts_of(key)[0], capacity, *rates), held, {int(n[1:]): tat for n, tat in tats.items()}, now)


def choice(*limiters: Limiter) -> Selector:
    made = Selector(NOW)
    made.limiters = {one.key: one for one in limiters}
    return made


def candidate(seq: int, *wanted: tuple[str, int] | str, waited: int = 0) -> Candidate:
    all_of = tuple(Need(one, 1) if isinstance(one, str) else Need(*one) for one in wanted)
    alike = tuple((parts_of(need.key)[0], is_keyed(need.key), need.weight) for need in all_of)
    return Candidate(seq, LANES.setdefault(alike, len(LANES) + 1), NOW - waited, all_of)


def seqs(runs: Sequence[Any]) -> list[int]:
    return [run.seq for run in runs]


# Names


def test_a_gate_stands_for_a_resource_or_for_one_key_of_it() -> None:
    assert parts_of(limiter_key("gpu")) == ("gpu", None)
    assert parts_of(limiter_key("customer", "a\x1fb")) == ("customer", "a\x1fb")
    assert parts_of(limiter_key("customer", "")) == ("customer", "")
    assert (is_keyed("gpu"), is_keyed(limiter_key("gpu", ""))) == (False, True)


def test_keys_come_from_the_payload_in_the_order_of_the_uses() -> None:
    uses = (Use("a", per="x.y"), Use("b"), Use("c", per="z"))
    text = keys_text(uses, {"x": {"y": 5}, "z": "five"})
    assert text == '["5","five"]'
    assert needs(uses, text) == (Need(limiter_key("a", "5"), 1), Need("b", 1), Need(limiter_key("c", "five"), 1))
    assert keys_text(uses, 7) == '["null","null"]'
    assert (keys_text((Use("b"),), {}), limits_by_key(uses), limits_by_key((Use("b"),))) == (None, True, False)


def test_a_long_key_is_kept_short_and_still_its_own() -> None:
    uses = (Use("a", per="x"),)
    one, other = (keys_text(uses, {"x": "x" * 10_000 + end}) for end in "ab")
    assert one != other
    assert len(one or "") < 250


# Capacity and order


@st.composite
def mixes(draw: Callable[..., Any]) -> tuple[dict[str, int | None], dict[str, int], list[Candidate], int]:
    capacities = {name: draw(st.none() | st.integers(0, 4)) for name in ("cpu", "gpu", "customer")}
    held = {key: draw(st.integers(0, 4)) for key in KEYS}
    some = st.dictionaries(st.sampled_from(KEYS), st.integers(1, 3), max_size=3)
    waits = st.sampled_from([0, MAX_WAIT - 1, MAX_WAIT])
    runs = [candidate(seq, *sorted(draw(some).items()), waited=draw(waits)) for seq in range(1, draw(st.integers(1, 8)) + 1)]
    return capacities, held, runs, draw(st.integers(1, 8))


def limiters_of(capacities: dict[str, int | None], held: dict[str, int]) -> list[Limiter]:
    return [limiter(key, capacities[parts_of(key)[0]], held[key]) for key in KEYS]


@given(mixes())
def test_S11_S14_a_choice_never_exceeds_a_capacity_and_keeps_the_order(
    mix: tuple[dict[str, int | None], dict[str, int], list[Candidate], int],
) -> None:
    capacities, held, runs, count = mix
    chosen = choice(*limiters_of(capacities, held))
    seen = chosen.offer(runs, count)
    occupied = Counter(held)
    for run in chosen.runs:
        for key, weight in run.needs:
            occupied[key] += weight
            assert capacities[parts_of(key)[0]] is None or occupied[key] <= (capacities[parts_of(key)[0]] or 0)
    assert len(chosen.runs) <= count
    assert seqs(chosen.runs) == sorted(seqs(chosen.runs))
    assert seen == len(runs) or len(chosen.runs) == count
    assert not set(seqs(chosen.runs)) & set(seqs(chosen.parked))
    assert len(set(seqs(chosen.parked))) == len(chosen.parked)
    for row in chosen.taken:
        before = [one.weight for one in chosen.taken if one.key == row.key and one.seq <= row.seq]
        assert (row.upto, row.capacity) == (sum(before), capacities[parts_of(row.key)[0]])


@given(mixes())
def test_S14_who_needs_nothing_always_passes_and_who_is_refused_lacks_something(
    mix: tuple[dict[str, int | None], dict[str, int], list[Candidate], int],
) -> None:
    capacities, held, runs, _ = mix
    chosen = choice(*limiters_of(capacities, held))
    chosen.offer(runs, len(runs))
    for run in runs:
        refused = run not in chosen.runs
        # What is occupied and kept only grows, so who was refused still lacks something at the end.
        assert not refused or lacks(run.needs, chosen.limiters, chosen.kept)
        assert run.needs or not refused


@given(mixes(), st.integers(1, 8))
def test_it_does_not_matter_in_how_many_parts_runs_are_offered(
    mix: tuple[dict[str, int | None], dict[str, int], list[Candidate], int], cut: int
) -> None:
    capacities, held, runs, _ = mix
    whole, parts = choice(*limiters_of(capacities, held)), choice(*limiters_of(capacities, held))
    whole.offer(runs, len(runs))
    parts.offer(runs[:cut], len(runs))
    first = parts.runs, parts.parked
    parts.offer(runs[cut:], len(runs))
    assert (first[0] + parts.runs, first[1] + parts.parked) == (whole.runs, whole.parked)


def test_a_choice_stops_at_its_count() -> None:
    chosen = choice(limiter(capacity=5))
    assert chosen.offer([candidate(n, "gpu") for n in range(1, 5)], 2) == 2
    assert seqs(chosen.runs) == [1, 2]


# Who waits for whom


def test_the_first_that_lacks_one_resource_has_it_kept() -> None:
    chosen = choice(limiter(capacity=3, held=2), limiter("cpu", 1))
    chosen.offer([candidate(1, ("gpu", 2)), candidate(2, "gpu"), candidate(3, "cpu")], 9)
    assert seqs(chosen.runs) == [3]
    assert chosen.kept == {"gpu"}
    assert [lack.why for lack in lacks((Need("gpu", 1),), chosen.limiters, chosen.kept)] == ["kept"]


def test_one_that_lacks_several_has_them_kept_once_it_has_waited() -> None:
    both, light = (("cpu", 2), ("gpu", 2)), candidate(2, "cpu")
    for waited, passes in ((MAX_WAIT - 1, [2]), (MAX_WAIT, [])):
        chosen = choice(limiter("cpu", 2, held=1), limiter("gpu", 2, held=1))
        chosen.offer([candidate(1, *both, waited=waited), light], 9)
        assert seqs(chosen.runs) == passes


def test_one_that_has_waited_keeps_also_what_is_free() -> None:
    chosen = choice(limiter("cpu", 1), limiter("gpu", 1, held=1))
    chosen.offer([candidate(1, "cpu", "gpu", waited=MAX_WAIT), candidate(2, "cpu")], 9)
    assert (chosen.runs, chosen.kept) == ([], {"cpu", "gpu"})


def test_a_heavy_run_does_not_starve_among_light_ones() -> None:
    """Light runs keep coming and end one by one; the heavy one passes as soon as those before it have ended."""
    live, heavy, passed = [1, 1], candidate(1, ("gpu", 2)), 0
    for turn in range(2, 20):
        chosen = choice(limiter(capacity=2, held=len(live)))
        chosen.offer([heavy, candidate(turn, "gpu")], 9)
        if chosen.runs:
            passed = turn
            assert seqs(chosen.runs) == [1]
            break
        live.pop()
    assert passed == 4


def test_what_is_impossible_blocks_nobody() -> None:
    for impossible in (candidate(1, ("gpu", 3)), candidate(1, ("gpu", 3), "cpu", waited=MAX_WAIT)):
        chosen = choice(limiter(capacity=2), limiter("cpu", 1))
        chosen.offer([impossible, candidate(2, "gpu"), candidate(3, "cpu")], 9)
        assert seqs(chosen.runs) == [2, 3]
        assert (chosen.kept, chosen.parked) == (set(), [])
    assert limiter(rates=[Rate(10, 1_000, 2)]).impossible(3)
    assert not limiter(capacity=None, rates=[Rate(10, 1_000, 3)]).impossible(3)
    assert limiter(capacity=0).impossible(1)


def test_what_lacks_its_key_is_parked_and_nobody_waits_for_it() -> None:
    one, two = limiter_key("customer", "1"), limiter_key("customer", "2")
    chosen = choice(limiter(one, 1, held=1), limiter(two, 1), limiter("gpu", 1))
    chosen.offer([candidate(1, one, "gpu"), candidate(2, one), candidate(3, two, "gpu")], 9)
    assert seqs(chosen.runs) == [3]
    assert [(row.seq, row.key, row.capacity) for row in chosen.parked] == [(1, one, 1), (2, one, 1)]
    assert chosen.kept == set()


def test_a_rate_says_when_and_parks_only_under_a_key() -> None:
    key, rates = limiter_key("customer", "1"), [Rate(1, 1_000)]
    full = (NOW + 1_000) * 1000
    chosen = choice(limiter(key, None, rates=rates, n0=full), limiter("gpu", None, rates=rates, n0=full))
    chosen.offer([candidate(1, key), candidate(2, "gpu"), candidate(3, "gpu")], 9)
    assert [(row.seq, row.capacity) for row in chosen.parked] == [(1, None)]
    assert chosen.later == {key: NOW + 1_000, "gpu": NOW + 1_000}
    assert chosen.kept == {"gpu"}


# Rates


def test_a_burst_and_then_evenly() -> None:
    rates = [Rate(10, 1_000, 3)]
    tats: dict[int, int] = {}
    passed = []
    for at in range(NOW, NOW + 1_000):
        one = Limiter("gpu", resource("gpu", None, *rates), 0, tats, at)
        while not one.late(1):
            one.take(1)
            tats = dict(enumerate(one._tats))
            passed.append(at - NOW)
    assert passed == [0, 0, 0, *range(100, 1_000, 100)]


@given(
    rate=st.builds(Rate, st.integers(1, 20), st.integers(1, 5_000), st.none() | st.integers(1, 10)),
    asks=st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 3)), max_size=30),
)
def test_a_rate_is_a_bucket_that_leaks_evenly(rate: Rate, asks: list[tuple[int, int]]) -> None:
    """Against a plain simulation: a bucket of `burst`, out of which one unit leaks in every step."""
    step, room = window(rate)
    level, last, now, tats = 0, NOW * 1000, NOW, dict[int, int]()
    for later, weight in asks:
        now += later
        level, last = max(0, level - (now * 1000 - last)), now * 1000
        one = Limiter("gpu", resource("gpu", None, rate), 0, tats, now)
        fits = level + weight * step <= room
        until = one.late(weight)
        assert (until == 0) == fits
        if fits:
            one.take(weight)
            level, tats = level + weight * step, dict(enumerate(one._tats))
        elif not one.impossible(weight):
            at_last = Limiter("gpu", resource("gpu", None, rate), 0, tats, until)
            before = Limiter("gpu", resource("gpu", None, rate), 0, tats, until - 1)
            assert (at_last.late(weight), bool(before.late(weight))) == (0, True)


def test_all_windows_must_have_room() -> None:
    one = limiter(capacity=None, rates=[Rate(10, 1_000, 1), Rate(2, 60_000)])
    assert not one.late(1)
    one.take(1)
    assert one.late(1) == NOW + 100
    one.take(1)
    assert one.late(1) == NOW + 30_000


def test_a_bucket_that_is_more_than_full_begins_anew() -> None:
    room = window(Rate(1, 1_000)).room
    full, slow, old = ((NOW * 1000 + room + more) for more in (0, SKEW, SKEW + 1))
    assert limiter(capacity=None, rates=[Rate(1, 1_000)], n0=full).late(1) == NOW + 1_000
    assert limiter(capacity=None, rates=[Rate(1, 1_000)], n0=slow).late(1) == NOW + 61_000
    assert limiter(capacity=None, rates=[Rate(1, 1_000)], n0=old).late(1) == 0
