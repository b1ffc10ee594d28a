"""The command that changes the order of a queue."""

from __future__ import annotations

from windlass.cli import views
from windlass.cli.codes import OK
from windlass.cli.shell import Shell, who
from windlass.store.base import run_sync


def move(shell: Shell) -> int:
    """Give a run that waits another place in its queue."""
    said = shell.arguments
    with shell.engine() as engine:
        acting = shell.act(engine, "move", f"run {said.id}")
        run = run_sync(acting.move(said.id, place=said.place, to=said.to, before=said.before, after=said.after, by=who()))
    if shell.output.json:
        shell.output.document(views.run_document(run))
    else:
        shell.output.raw(f"{run.state} in {run.queue}, priority {run.priority}")
    return OK
