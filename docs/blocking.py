"""Writes the blocking classes from the async ones, so that the two cannot differ.

A method of the client only passes a verb on, and is written from its signature. The classes of the library are written from the text of the
async ones: a call that is awaited there runs on the caller's thread.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Generic, Protocol

from windlass.api.verbs import Verbs

_PACKAGE = Path(__file__).parent.parent / "src" / "windlass"
CLIENT, APP = _PACKAGE / "client" / "blocking.py", _PACKAGE / "app" / "blocking.py"

_ORIGINS = {
    "StreamingVerbs": "windlass.client.streaming",
    "blocking_events": "windlass.client.events",
    "drive": "windlass.app.working",
    "nap": "windlass.clock",
    "on_thread": "windlass.slots",
    "run_sync": "windlass.store.base",
}
"""The modules of the names that only the blocking classes use."""


# The client: each method calls the verb of its name

_CLIENT = "The verbs for synchronous code: each blocks until its answer is there. Written by docs/generate.py from `windlass.api.verbs`."

_Method = ast.FunctionDef | ast.AsyncFunctionDef


def blocking_client(verbs: type = Verbs) -> str:
    """The text of the blocking verbs."""
    areas = [(area.__module__, area.__name__) for area in verbs.__mro__ if area not in (object, Generic, Protocol)]
    areas.append((_ORIGINS["StreamingVerbs"], "StreamingVerbs"))
    methods = "\n\n".join(_client_method(method) for module, area in areas for method in _methods(module, area))
    body = f'class BlockingVerbs:\n    """All public verbs of a hub."""\n\n    _verbs: StreamingVerbs\n\n{methods}'
    return _file(_CLIENT, body, [module for module, _ in areas], CLIENT)


def _methods(module: str, area: str) -> Iterator[_Method]:
    for node in ast.parse(_source(module)).body:
        if isinstance(node, ast.ClassDef) and node.name == area:
            yield from (member for member in node.body if isinstance(member, _Method))


def _client_method(method: _Method) -> str:
    returns = "None" if method.returns is None else ast.unparse(method.returns)
    run = "run_sync" if isinstance(method, ast.AsyncFunctionDef) else "blocking_events"
    call = f"{run}(self._verbs.{method.name}({', '.join(_passed(method.args))}))"
    head = f"    def {method.name}({ast.unparse(method.args)}) -> {_without_async(returns)}:"
    return f'{head}\n        """{ast.get_docstring(method) or ""}"""\n        {call if returns == "None" else f"return {call}"}'


def _passed(signature: ast.arguments) -> Iterator[str]:
    yield from (argument.arg for argument in (*signature.posonlyargs, *signature.args) if argument.arg != "self")
    yield from (f"{argument.arg}={argument.arg}" for argument in signature.kwonlyargs)
    if signature.kwarg is not None:
        yield f"**{signature.kwarg.arg}"


# The library: the text of each async class, with the awaited calls run on the caller's thread

_APP = "`App`, with its jobs, groups and handles. Written by docs/generate.py from the async classes; run `make docs` after a change."

_MODULES = tuple(f"windlass.app.{name}" for name in ("handles", "groups", "jobs", "schedules", "apps"))

_REPLACED = {
    "asynccontextmanager": "contextmanager",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "asyncio.sleep": "nap",
    "in_loop": "on_thread",
    "for the coroutines of one event loop: methods that use the store are awaited": "for synchronous code; threads may share it",
    "for coroutines": "for synchronous code",
}

_RUN_BY = {"self._work": "drive", "asyncio.sleep": ""}
"""What runs an awaited call, where it is not `run_sync`."""


def blocking_app() -> str:
    """The text of the blocking classes: one for each class whose name begins with Async."""
    texts = [text for module in _MODULES for text in _async_classes(module)]
    return _file(_APP, "\n\n\n".join(blocking_classes(texts)), _MODULES, APP)


def _async_classes(module: str) -> Iterator[str]:
    text = _source(module)
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Async"):
            yield ast.get_source_segment(text, node) or ""


def blocking_classes(texts: Iterable[str]) -> list[str]:
    """The blocking twins of async classes, which call each other's methods."""
    texts = list(texts)
    methods = {name for text in texts for name in re.findall(r"async def (\w+)", text)}
    return [_without_async(_without_await(text, methods)) for text in texts]


def _without_await(text: str, methods: Collection[str]) -> str:
    """A class in which awaited calls are run; these methods, which become blocking themselves, are only called."""
    tree, source = ast.parse(text), text.encode()
    lines = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    bracketed = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}  # an awaited value whose attribute is read
    edits = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Await):
            start, end = lines[node.lineno - 1] + node.col_offset, lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            run, brackets = _run_by(node.value, methods), node in bracketed
            edits += [(start - brackets, start + len("await "), run and f"{run}("), (end, end + brackets, run and ")")]
    for start, end, new in sorted(edits, reverse=True):
        source = source[:start] + new.encode() + source[end:]
    return source.decode()


def _run_by(call: ast.expr, methods: Collection[str]) -> str:
    """The function that runs an awaited call; none where the call itself blocks."""
    assert isinstance(call, ast.Call), ast.unparse(call)
    owner, _, method = (function := ast.unparse(call.func)).rpartition(".")
    return "" if owner in ("self", "self.app") and method in methods else _RUN_BY.get(function, "run_sync")


def _without_async(text: str) -> str:
    """A text with the names and words of blocking code."""
    words = "|".join(map(re.escape, _REPLACED))
    text = re.sub(rf"\b({words})\b", lambda match: _REPLACED[match[0]], text)
    return re.sub(r"(?m)^( *)async (?=def|with)", r"\1", re.sub(r"\bAsync(?=[A-Z])", "", text))


# Sources, imports, format


def _source(module: str) -> str:
    """The text of a module. One that uses the generated files is not imported, because they may be out of date."""
    if module in sys.modules:
        return inspect.getsource(sys.modules[module])
    return (_PACKAGE.parent / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")


def _file(promise: str, body: str, modules: Iterable[str], file: Path) -> str:
    """The text of a file with these classes, and with imports from where the text of their sources has its names."""
    tree = ast.parse(body)
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    origins = {name: f"from {module} import {name}" for name, module in _ORIGINS.items()}
    for module in modules:
        origins |= dict(_origins(module))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - own
    imports = "\n".join(sorted({origins[name] for name in used if name in origins}))
    return _formatted(f'"""{promise}"""\n\nfrom __future__ import annotations\n\n{imports}\n\n\n{body}\n', file)


def _origins(module: str) -> Iterator[tuple[str, str]]:
    """The names of a module, each with the line that imports it: as this module does, or from it."""
    for node in ast.parse(_source(module)).body:
        if isinstance(node, ast.ImportFrom):
            for name in (_without_async(alias.name) for alias in node.names):
                yield name, f"from {node.module} import {name}"
        elif isinstance(node, ast.Import):
            yield from ((alias.name, f"import {alias.name}") for alias in node.names)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, f"from {module} import {node.name}"
        elif isinstance(node, ast.Assign):
            yield from ((target.id, f"from {module} import {target.id}") for target in node.targets if isinstance(target, ast.Name))


def _formatted(text: str, file: Path) -> str:
    for step in (["check", "--fix", "--select", "I,F401", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *step, "--stdin-filename", str(file), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text
