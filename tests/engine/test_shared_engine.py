"""Threads share one engine, as those of a worker on a store in memory do: between any two of its lines, another may do the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from tests.harness import Harness
from tests.tiers import long
from windlass import engine
from windlass.clock import ManualClock
from windlass.model import Limits, NewRun
from windlass.store.sqlite import BlockingSqlite

LINES = str(Path(engine.__file__).parent)


@contextmanager
def before_line(number: int, other: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Do something else before this line of the engine, as a thread does that gets its turn just then; whether there was such a line."""
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(LINES) or frame.f_code.co_qualname.startswith("Lanes."):  # which have a lock
            return None
        if event == "line":
            left -= 1
            if left == -1:
                sys.settrace(None)
                other()
        return trace if left >= 0 else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: left < 0
    finally:
        sys.settrace(before)


@long
def test_another_thread_may_sweep_between_any_two_lines_of_a_sweep() -> None:
    clock = ManualClock()
    h = Harness(BlockingSqlite(":memory:", clock), clock)
    h.define()

    def swept() -> None:
        h.sweep()
        h(h.engine.prune())

    for number in count():
        h.create()
        h.succeed(h.claimed())
        h(h.engine.create([NewRun("mail", due_at=clock.now() + 1)]))
        clock.advance(Limits().keep_succeeded + 1)
        with before_line(number, swept) as was_reached:
            swept()
        assert [run.state for run in h(h.engine.runs(count=100)).runs] == ["queued"]
        h.succeed(h.claimed())
        if not was_reached():
            break
    assert number > 100
    h(h.store.close())
