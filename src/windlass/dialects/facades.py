"""The verbs of a dialect as functions on the caller's thread, over a store or an app."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from windlass.app import App
from windlass.store.base import run_sync

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
F = TypeVar("F", bound="Facade[Any]")

Location = App | str | os.PathLike[str]


class Facade(Generic[V_co]):
    """The verbs over the store at an address, or over that of an app. A context manager, which closes a store that it has opened."""

    def __init__(self, store: Location | None = None) -> None:
        self._app = store if isinstance(store, App) else App(store)
        self._owns = not isinstance(store, App)

    @property
    def verbs(self) -> V_co:
        """The same verbs as coroutines."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the store, unless it is an app's."""
        if self._owns:
            self._app.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def method(verb: Callable[Concatenate[V, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Facade[V], P], T]:
    """A verb as a method of a facade."""

    @wraps(verb)
    def call(facade: Facade[V], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(verb(facade.verbs, *args, **kwargs))

    return call


def function(kind: type[F], method: Callable[Concatenate[F, P], T]) -> Callable[Concatenate[F | Location, P], T]:
    """A method of a facade as a function of a store, which is opened for the call if only its address is given."""

    @wraps(method)
    def call(store: F | Location, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if isinstance(store, Facade):
            return method(store, *args, **kwargs)
        with kind(store) as facade:
            return method(facade, *args, **kwargs)

    return call
