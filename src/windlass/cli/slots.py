"""The commands of direct calls: who waits for which resource, and a command that runs while it holds a slot."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rich.table import Table

from windlass.api.verbs import Verbs
from windlass.cli import views
from windlass.cli.output import cell, table
from windlass.cli.shell import Shell, who
from windlass.engine.limiting import SLOT_LEASE
from windlass.errors import BadInput
from windlass.gates import parts_of
from windlass.model import Slot
from windlass.slots import Call, HeldSlot, on_thread
from windlass.store.base import run_sync

LOOK_EVERY = 0.1  # seconds between two looks whether the slot is still held


def slots(shell: Shell) -> int:
    """List direct calls that hold something or wait, in their order."""
    with shell.engine() as engine:
        found = run_sync(engine.slots(count=shell.arguments.limit))
    return shell.answer_list(Verbs.slots, found, _slots, "Nobody holds a slot or waits for one.")


def _slots(found: Sequence[Slot], now: int) -> Table:
    made = table("id", "resource", "state", "weight", "by", "asked", "lease", cut=("resource", "by"))
    for slot in found:
        resource, key = parts_of(slot.key)
        name = resource if key is None else f"{resource} for {key}"
        times = views.ago(slot.created_at, now), views.ago(slot.lease_until, now)
        made.add_row(cell(slot.id), cell(name), slot.state, f"{slot.weight:,}", cell(slot.who or ""), *times)
    return made


def slot(shell: Shell) -> int:
    """Run a command while it holds the next slot of a resource; the exit code is the command's."""
    given = shell.arguments
    if not given.argv:
        raise BadInput("There is no command to run.", hint=f"Write it behind two dashes: windlass slot {given.resource} -- COMMAND.")
    call = Call(given.resource, given.key, given.weight, given.timeout, SLOT_LEASE if given.lease is None else given.lease, who())
    with shell.engine() as engine, _forwarding() as child, on_thread(engine, call) as held:
        return child.run(given.argv, held)


class _Child:
    """The command, and what signals do: before it has begun they end the wait, afterwards they are the command's."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, argv: Sequence[str], held: HeldSlot) -> int:
        """Its exit code, as a shell would tell it."""
        try:
            self._process = subprocess.Popen(argv)
        except OSError as error:
            raise BadInput(f"Cannot run {argv[0]}: {error.strerror}.", hint="Check its name, and that it may be executed.") from None
        told = False
        while (code := self._ended()) is None:
            if held.lost and not told:
                told = True
                self._process.terminate()
        return 128 - code if code < 0 else code

    def _ended(self) -> int | None:
        assert self._process is not None
        try:
            return self._process.wait(LOOK_EVERY)
        except subprocess.TimeoutExpired:
            return None

    def signalled(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on. What is typed at a terminal reaches the command by itself."""
        if self._process is None:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        if number != signal.SIGINT or not os.isatty(0):
            self._process.send_signal(number)


@contextmanager
def _forwarding() -> Iterator[_Child]:
    child = _Child()
    before = {number: signal.signal(number, child.signalled) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield child
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
