"""Imports the object that `module:attribute` names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from windlass.cli.output import clean
from windlass.errors import BadInput, WindlassError, nearest


class BadModule(WindlassError):
    """The module of the app has raised an error of its own while it was imported."""

    code = "bad_module"


def find_target(target: str) -> Any:
    """The object that `module:attribute` names, with the current folder on the path."""
    module, colon, attribute = target.partition(":")
    if not colon or not module or not attribute or module.endswith(".py"):
        near = module.removesuffix(".py").strip("./").replace("/", ".") or "shop"
        raise BadInput(f"{target!r:.80} does not name an app.", hint=f"Write module:attribute, such as {near}:{attribute or 'app'}.")
    value: Any = _imported(module)
    for part in attribute.split("."):
        value = _member(value, part, module)
    return value


def _imported(module: str) -> ModuleType:
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(module, error) from error
        raise BadInput(
            f"There is no module {module}.", hint=f"Start windlass in the folder that has {module.partition('.')[0]}, or correct the name."
        ) from None
    except Exception as error:
        raise _broken(module, error) from error


def _broken(module: str, error: Exception) -> BadModule:
    """Show the module's own traceback, without the frames that led into it."""
    frames = error.__traceback__
    while frames is not None and (frames.tb_frame.f_code.co_filename == __file__ or "importlib" in frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    sys.stderr.write(clean("".join(traceback.format_exception(type(error), error, frames))))
    return BadModule(f"{module} could not be imported: {type(error).__name__}.", hint="Correct what the traceback above shows.")


def _member(owner: Any, name: str, module: str) -> Any:
    if hasattr(owner, name):
        return getattr(owner, name)
    near = nearest(name, dir(owner))
    raise BadInput(
        f"The module {module} has no {name}.", hint=f"Did you mean {near}?" if near else f"Define it, such as {name} = App(...)."
    )
