"""Finds the verb of a request by its method and path."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import unquote

T = TypeVar("T")


class Match(NamedTuple, Generic[T]):
    """A path, its entries by method, and the values of its parameters in order."""

    path: str
    methods: dict[str, T]
    values: tuple[str, ...]


class _Node(Generic[T]):
    """A node of the tree of paths: children by name, a child for any name, and the entries that end here."""

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.any: _Node[T] | None = None
        self.path = ""
        self.methods: dict[str, T] = {}

    def child(self, part: str) -> _Node[T]:
        if part.startswith("{"):
            self.any = self.any or _Node()
            return self.any
        return self.children.setdefault(part, _Node())


class Routes(Generic[T]):
    """All paths, as a tree of their parts."""

    def __init__(self) -> None:
        self._root = _Node[T]()
        self._fixed: dict[str, Match[T]] = {}

    def add(self, method: str, path: str, target: T) -> None:
        """Add a method of a path; `{name}` in it is any part."""
        node = self._root
        for part in path.split("/")[1:]:
            node = node.child(part)
        node.path, node.methods[method] = path, target
        if "{" not in path:
            self._fixed[path] = Match(path, node.methods, ())

    def find(self, scope: Any) -> Match[T] | None:
        """The match for a path. A name has precedence over a parameter; extra slashes before it, and one after it, are ignored."""
        path, raw = path_below_mount(scope), scope.get("raw_path") or b""
        if b"%2" not in raw and (match := self._fixed.get(path)) is not None:
            return match
        parts = _parts("/" + path.lstrip("/"), raw)  # an address that ends with a slash is often put before a path that starts with one
        if len(parts) > 1 and not parts[-1]:
            del parts[-1]
        return _walk(self._root, parts)


def _walk(root: _Node[T], parts: list[str]) -> Match[T] | None:
    node, values = root, list[str]()
    for part in parts:
        if (child := node.children.get(part)) is None:
            if node.any is None or not part:
                return None
            child = node.any
            values.append(part)
        node = child
    return Match(node.path, node.methods, tuple(values)) if node.methods else None


def path_below_mount(scope: Any) -> str:
    """The path below the hub's mount point. Some frameworks leave the mount point in the path, others remove it."""
    path, mount = scope["path"], scope.get("root_path") or ""
    return (path[len(mount) :] if mount and path.startswith(mount) else path) or "/"


def _parts(path: str, raw: bytes) -> list[str]:
    """The parts of a path. A slash that belongs to a name is escaped in the raw path, and does not divide it."""
    parts = path.split("/")[1:]
    if b"%2" not in raw:
        return parts
    names = [unquote(part) for part in raw.decode("ascii", "replace").split("/")]
    below = (path[1:], path[1:].removesuffix("/"))  # the raw path may still have the mount point, and Litestar adds a slash to the other
    starts = (start for start in range(len(names)) if "/".join(names[start:]) in below)
    return names[start:] if (start := next(starts, None)) is not None else parts
