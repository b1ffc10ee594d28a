"""The command that executes runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from msgspec.structs import asdict

from windlass.app import App, AsyncApp
from windlass.app.options import WorkerOptions
from windlass.app.working import drive
from windlass.cli.codes import OK
from windlass.cli.context import CommandContext
from windlass.cli.logs import start_logging
from windlass.cli.reload import SUPERVISED, Supervisor
from windlass.cli.rows import WORK, Commands, option, settings_of
from windlass.cli.targets import find_target
from windlass.config.addresses import MEMORY, located, shown
from windlass.config.opening import solvers_of
from windlass.config.settings import SETTINGS, Settings, without_none
from windlass.dialects import agent_of
from windlass.errors import BadInput

SECONDS = ("lease", "grace")

COMMANDS = Commands()


@COMMANDS.add(
    "work",
    *settings_of("work"),
    option("--burst", action="store_true", help="stop when nothing is left to do"),
    option("--reload", action="store_true", help="for development: restart when a Python file changes"),
    option("--reload-folder", action="append", metavar="FOLDER", help="where to look for changes (default: here)"),
    option("--dialect", metavar="NAME", help="work for a hub that speaks this protocol, as its document describes an agent"),
    topic=WORK,
    meant_by=("worker", "run", "start", "execute", "drain"),
    examples="""
    windlass work shop:app
    windlass work shop:app --slots 8 --queue mail --queue reports
    windlass work shop:app --reload
    windlass work shop:app --burst
    windlass work shop:app --hub https://hub.example.com
    windlass work shop:app --solvers --solver-hosts files.example.com
    windlass work --dialect forge
    """,
)
def work(context: CommandContext) -> int:
    """Execute the jobs of an app until Ctrl-C or SIGTERM, which drains; a second one aborts."""
    target = context.settings.app
    if target is None and not context.settings.solvers and context.arguments.dialect is None:
        raise BadInput(
            "No app is named.", hint='Run windlass work shop:app, set WINDLASS_APP, or write app = "shop:app" into windlass.toml.'
        )
    if context.arguments.reload and SUPERVISED not in os.environ:
        return Supervisor(again(context.arguments.words), context.arguments.reload_folder or ["."], context.output.note).run()
    start_logging(context.settings)
    if _work_for(context, target):
        # A handler that could not be stopped ends with this process image; the process id stays, for a supervisor.
        sys.stdout.flush()
        os.execv(sys.executable, again(context.arguments.words))  # noqa: S606 - no context, and none wanted
    return OK


def _work_for(context: CommandContext, target: str | None) -> bool:
    """Work for a store, a hub, or a hub of another protocol; whether the process must be replaced."""
    if context.arguments.dialect is not None:
        return _work_as_agent(context, target)
    hub = context.hub
    app = find_app(target, hub or getattr(context.arguments, "store", None), "WINDLASS_HUB" if hub else "WINDLASS_STORE")
    return run_worker(app, context.settings, burst=context.arguments.burst)


def _work_as_agent(context: CommandContext, target: str | None) -> bool:
    arguments, agent = context.arguments, agent_of(context.arguments.dialect)
    if flags := [SETTINGS[name].flag for name in agent.WITHOUT_MEANING if name in arguments]:
        raise BadInput(f"An agent of this protocol has no use for {' and '.join(flags)}.", hint=f"Leave out {' and '.join(flags)}.")
    work: Callable[..., bool] = agent.work
    return work(find_app(target, None), context.values, os.environ, context.clock, burst=arguments.burst)


def again(words: Sequence[str]) -> list[str]:
    """The command line that starts this command in another process."""
    return [sys.executable, "-m", "windlass", *words]


def find_app(target: str | None, store: str | None, variable: str = "WINDLASS_STORE") -> App | AsyncApp:
    """The app that a target names, on the store or the hub that the command line names; without a target, one without jobs."""
    if store is not None:
        os.environ[variable] = store  # for an app without a store of its own, and for the processes of its handlers
    app = App() if target is None else find_target(target)
    if not isinstance(app, App | AsyncApp):
        raise BadInput(f"{target} is {type(app).__name__}, not an App or AsyncApp.", hint="Name the object that App(...) returns.")
    if store is not None and _place(store) != _place(app.address):
        raise BadInput(
            f"{target} keeps its runs in {shown(app.address)}, not in {shown(store)}.",
            hint="Leave --store or --hub out, or make the app without a store of its own: App().",
        )
    return app


def _place(address: str) -> str:
    """An address in one form, however its path is written."""
    kind, place = located(address)
    return os.path.abspath(place) if kind == "sqlite" and place != MEMORY else place


def run_worker(app: App | AsyncApp, settings: Settings, *, burst: bool) -> bool:
    """Work with an app's jobs until a signal, or with burst until nothing is left; whether the process must be replaced."""
    options = {name: value for name, value in without_none(asdict(settings)).items() if name in WorkerOptions.__optional_keys__}
    options |= {name: options[name] / 1000 for name in SECONDS if name in options}
    options["solvers"] = solvers_of(settings) or False
    if isinstance(app, AsyncApp):
        return drive(app.work(burst=burst, **options))
    return app.work(burst=burst, **options)
