"""The command that does the work."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from msgspec.structs import asdict

from windlass import config
from windlass.app import App, AsyncApp
from windlass.app.working import drive
from windlass.cli.codes import OK
from windlass.cli.logs import say_log
from windlass.cli.reload import SUPERVISED, Supervisor
from windlass.cli.shell import Shell
from windlass.cli.targets import find_target
from windlass.config import Settings
from windlass.errors import BadInput

NOT_THE_WORKERS = (
    "store",
    "pooled",
    "listen_store",
    "pool_size",
    "hub",
    "hub_token",
    "hub_ca",
    "app",
    "log_level",
    "log_format",
    "host",
    "port",
    "connections",
    "keep_succeeded",
    "keep_others",
    "allow",
    "plain_http",
    *(name for name in Settings.__struct_fields__ if name.startswith("solver")),
)
SECONDS = ("lease", "grace")


def work(shell: Shell) -> int:
    """Serve an app until told to stop; with --reload, in a child that is started anew when the code changes."""
    target = shell.settings.app
    if target is None and not shell.settings.solvers:
        raise BadInput(
            "No app is named.", hint='Say windlass work shop:app, set WINDLASS_APP, or write app = "shop:app" into windlass.toml.'
        )
    if shell.arguments.reload and SUPERVISED not in os.environ:
        return Supervisor(again(shell.arguments.words), shell.arguments.reload_folder or ["."], shell.output.note).run()
    say_log(shell.settings)
    hub = shell.hub
    app = find_app(target, hub or getattr(shell.arguments, "store", None), "WINDLASS_HUB" if hub else "WINDLASS_STORE")
    if run_worker(app, shell.settings, burst=shell.arguments.burst):
        # A handler that could not be stopped goes with this process image; the process itself stays, for whoever watches over it.
        sys.stdout.flush()
        os.execv(sys.executable, again(shell.arguments.words))  # noqa: S606 - no shell, and none wanted
    return OK


def again(words: Sequence[str]) -> list[str]:
    """The command line that starts this command in another process."""
    return [sys.executable, "-m", "windlass", *words]


def find_app(target: str | None, store: str | None, variable: str = "WINDLASS_STORE") -> App | AsyncApp:
    """The app that a target names, on the store or the hub that the command line names; without a target, one without jobs."""
    if store is not None:
        os.environ[variable] = store  # for an app that says none itself, and for the processes of its handlers
    app = App() if target is None else find_target(target)
    if not isinstance(app, App | AsyncApp):
        raise BadInput(f"{target} is {type(app).__name__}, not an App or AsyncApp.", hint="Name the object that App(...) has made.")
    if store is not None and _place(store) != _place(app.address):
        raise BadInput(
            f"{target} keeps its runs in {config.shown(app.address)}, not in {config.shown(store)}.",
            hint="Leave --store or --hub out, or make the app without a store of its own: App().",
        )
    return app


def _place(address: str) -> str:
    """The same for every way to write the same path."""
    kind, place = config.located(address)
    return os.path.abspath(place) if kind == "sqlite" and place != config.MEMORY else place


def run_worker(app: App | AsyncApp, settings: Settings, *, burst: bool) -> bool:
    """Work with an app's jobs until a signal, or with burst until nothing is left; whether the process wants to be replaced."""
    said = {name: value for name, value in asdict(settings).items() if value is not None and name not in NOT_THE_WORKERS}
    said |= {name: said[name] / 1000 for name in SECONDS if name in said}
    if (solvers := config.solvers_of(settings)) is not None:
        said["solvers"] = solvers
    if isinstance(app, AsyncApp):
        return drive(app.work(burst=burst, **said))
    return app.work(burst=burst, **said)
