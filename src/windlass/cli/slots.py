"""The commands about direct calls: the list of slots, and a command that runs while it holds one."""

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
from windlass.cli.context import CommandContext, actor
from windlass.cli.output import cell, table
from windlass.cli.rows import LOOK, WORK, Commands, option
from windlass.cli.values import duration, limit
from windlass.defaults import SLOT_LEASE
from windlass.errors import BadInput
from windlass.limiters import parts_of
from windlass.model import Slot
from windlass.slots import HeldSlot, SlotRequest, on_thread

POLL_EVERY = 0.1  # seconds between two checks whether the slot is still held

COMMANDS = Commands()


@COMMANDS.add("slots", limit(100), topic=LOOK, examples="windlass slots\nwindlass slots --json")
def slots(context: CommandContext) -> int:
    """List the direct calls that hold a slot or wait for one, in their order."""
    records = context.call(Verbs.slots, count=context.arguments.limit)
    return context.answer_list(Verbs.slots, records, _slots, "No slot is held or waited for.")


def _slots(records: Sequence[Slot], now: int) -> Table:
    grid = table("id", "resource", "state", "weight", "by", "asked", "lease", cut=("resource", "by"))
    for slot in records:
        resource, key = parts_of(slot.key)
        name = resource if key is None else f"{resource} for {key}"
        times = views.ago(slot.created_at, now), views.ago(slot.lease_until, now)
        grid.add_row(cell(slot.id), cell(name), slot.state, f"{slot.weight:,}", cell(slot.actor or ""), *times)
    return grid


@COMMANDS.add(
    "slot",
    option("resource", metavar="RESOURCE"),
    option("argv", nargs="*", metavar="COMMAND", help="the command to run, after two dashes"),
    option("--timeout", type=duration, metavar="TIME", help="wait no longer than this (exit code 124)"),
    option("--key", help="use a slot of this key"),
    option("--weight", type=int, default=1, metavar="N", help="how much of the resource is needed (default: 1)"),
    option("--lease", type=duration, metavar="TIME", help="how long the slot is held if this process dies (default: 30s)"),
    topic=WORK,
    meant_by=("lock",),
    examples="""
    windlass slot ollama -- curl http://127.0.0.1:11434/api/generate -d @question.json
    windlass slot --timeout 30s ollama -- ./ask.sh
    """,
)
def slot(context: CommandContext) -> int:
    """Run a command while holding the next slot of a resource; the exit code is the command's."""
    arguments = context.arguments
    if not arguments.argv:
        raise BadInput("There is no command to run.", hint=f"Write it after two dashes: windlass slot {arguments.resource} -- COMMAND.")
    call = SlotRequest(
        arguments.resource,
        arguments.key,
        arguments.weight,
        arguments.timeout,
        SLOT_LEASE if arguments.lease is None else arguments.lease,
        actor(),
    )
    with _forwarding() as child, on_thread(context.verbs, call) as held:
        return child.run(arguments.argv, held)


class _Child:
    """The command, and the handling of signals: before it starts they end the wait, afterwards they are passed on to it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, argv: Sequence[str], held: HeldSlot) -> int:
        """Its exit code, as a shell reports it."""
        try:
            self._process = subprocess.Popen(argv)
        except OSError as error:
            raise BadInput(f"Cannot run {argv[0]}: {error.strerror}.", hint="Check its name, and that it may be executed.") from None
        terminated = False
        while (code := self._ended()) is None:
            if held.lost and not terminated:
                terminated = True
                self._process.terminate()
        return 128 - code if code < 0 else code

    def _ended(self) -> int | None:
        assert self._process is not None
        try:
            return self._process.wait(POLL_EVERY)
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
