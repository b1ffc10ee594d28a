"""Parts that are created when they are first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class once(Generic[T]):
    """A `cached_property` without its lock, which costs as much as a part. Threads that race create equal parts, and one of them stays."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self.name = make, make.__name__

    @overload
    def __get__(self, whole: None, owner: type) -> once[T]: ...

    @overload
    def __get__(self, whole: object, owner: type) -> T: ...

    def __get__(self, whole: object | None, owner: type) -> once[T] | T:
        if whole is None:
            return self
        part = whole.__dict__[self.name] = self._make(whole)
        return part
