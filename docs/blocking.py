"""Makes the text of the blocking client from the verbs: the same signatures without `async`, so that the two cannot differ."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, Protocol

from windlass.api.verbs import Verbs

FILE = Path(__file__).parent.parent / "src" / "windlass" / "client" / "blocking.py"

_HEAD = '''"""The verbs for plain code: each blocks until its answer is there. Written by docs/generate.py from `windlass.api.verbs`."""

from __future__ import annotations

{imports}
from windlass.client.verbs import RemoteVerbs
from windlass.store.base import run_sync


class BlockingVerbs:
    """Everything that people ask of a hub."""

    _verbs: RemoteVerbs

'''


def blocking_client(verbs: type = Verbs) -> str:
    """The text of the file."""
    areas = [area for area in verbs.__mro__ if area not in (object, Generic, Protocol)]
    modules = {area: ast.parse(Path(inspect.getfile(area)).read_text(encoding="utf-8")) for area in areas}
    methods = [method for area in areas for method in _methods(modules[area], area.__name__)]
    names = {node.id for method in methods for node in _signature_nodes(method) if isinstance(node, ast.Name)}
    imports = sorted({line for module in modules.values() for line in _imports(module, names)})
    text = _HEAD.format(imports="\n".join(imports)) + "\n\n".join(_text(method) for method in methods) + "\n"
    return _formatted(text)


def _methods(module: ast.Module, area: str) -> Iterator[ast.AsyncFunctionDef]:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == area:
            yield from (member for member in node.body if isinstance(member, ast.AsyncFunctionDef))


def _signature_nodes(method: ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    for part in (method.args, method.returns):
        if part is not None:
            yield from ast.walk(part)


def _imports(module: ast.Module, names: Iterable[str]) -> Iterator[str]:
    """The lines that import these names, as far as the module has them."""
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield from (f"from {node.module} import {alias.name}" for alias in node.names if alias.name in names)


def _text(method: ast.AsyncFunctionDef) -> str:
    signature = ast.unparse(method.args)
    returns = "" if method.returns is None else f" -> {ast.unparse(method.returns)}"
    promise = ast.get_docstring(method) or ""
    call = f"run_sync(self._verbs.{method.name}({', '.join(_passed(method.args))}))"
    answer = call if method.returns is not None and ast.unparse(method.returns) == "None" else f"return {call}"
    return f'    def {method.name}({signature}){returns}:\n        """{promise}"""\n        {answer}'


def _passed(arguments: ast.arguments) -> Iterator[str]:
    yield from (argument.arg for argument in (*arguments.posonlyargs, *arguments.args) if argument.arg != "self")
    yield from (f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs)
    if arguments.kwarg is not None:
        yield f"**{arguments.kwarg.arg}"


def _formatted(text: str) -> str:
    for step in (["check", "--fix", "--select", "I", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *step, "--stdin-filename", str(FILE), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text
