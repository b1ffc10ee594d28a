"""The command that changes the order of a queue."""

from __future__ import annotations

from windlass.api.verbs import Verbs
from windlass.cli.shell import Shell, who
from windlass.store.base import run_sync


def move(shell: Shell) -> int:
    """Give a run that waits another place in its queue."""
    said = shell.arguments
    with shell.engine() as engine:
        acting = shell.act(engine, "move", f"run {said.id}")
        run = run_sync(acting.move(said.id, place=said.place, to=said.to, before=said.before, after=said.after, by=who()))
    return shell.answer(Verbs.move, run, f"{run.state} in {run.queue}, priority {run.priority}")
