"""Writes the parts of the docs that are generated from the code. With --check, only reports whether they are current."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable
from json import dumps
from pathlib import Path

import blocking

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench import race_page
from windlass import errors
from windlass.cli.rows import TOPICS, CommandRow, all_rows
from windlass.config.settings import SETTINGS, Setting, Table, variable
from windlass.dialects.base import Dialect
from windlass.errors import WindlassError
from windlass.hub import description
from windlass.machine import ENDED, FIRST, MOVES, Create
from windlass.model import State
from windlass.store.records import BATCHES

DOCS = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py from the code; run `make docs` after a change. -->\n"


def _edges() -> dict[tuple[State, State], list[str]]:
    """Every change of state, with the transitions that make it."""
    edges: dict[tuple[State, State], list[str]] = {}
    for state, row in MOVES.items():
        for command, move in row.items():
            for target in move.to:
                if target != state:
                    edges.setdefault((state, target), []).append(command.name)
    return edges


def _diagram() -> str:
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state}: {Create.name}" for state in FIRST]
    lines += [f"    {state} --> {target}: {', '.join(names)}" for (state, target), names in _edges().items()]
    lines += [f"    {state} --> [*]" for state in ENDED]
    return "\n".join(lines)


def _promise(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def _moves() -> str:
    rows = ["| move | from | to | what it means |", "|---|---|---|---|"]
    rows.append(f"| `{Create.name}` | | {', '.join(FIRST)} | {_promise(Create)} |")
    commands = list(dict.fromkeys(command for row in MOVES.values() for command in row))
    for command in commands:
        leads = {state: row[command].to for state, row in MOVES.items() if command in row and row[command].to}
        targets = dict.fromkeys(target for to in leads.values() for target in to)
        rows.append(f"| `{command.name}` | {', '.join(leads)} | {', '.join(targets)} | {_promise(command)} |")
    return "\n".join(rows)


def lifecycle() -> str:
    """The life of a run: the diagram and the table of moves."""
    return f"""# The life of a run

{NOTE}
`windlass/machine.py` defines every change of state: `FIRST` has the first states of a run, `MOVES` the transitions ("moves") from each
state. This page is generated from them.
An ended run ({", ".join(ENDED)}) never changes again; a rerun is a new run.

```mermaid
{_diagram()}
```

{_moves()}
"""


def error_list() -> str:
    """Every error with its code and status."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WindlassError)]
    rows = ["| error | code | HTTP status | what it means |", "|---|---|---|---|"]
    rows += [f"| `{kind.__name__}` | `{kind.code}` | {kind.status} | {_promise(kind)} |" for kind in kinds]
    table = "\n".join(rows)
    return f"""# Errors

{NOTE}
Every error has a code, an HTTP status, a message about what happened, and a hint about what to do next.

{table}
"""


def fault_list() -> str:
    """The verbs and statements between which faults can be set."""
    rows = ["| verb | points inside its batch |", "|---|---|"]
    rows += [f"| `{verb}` | {', '.join(f'`after_{name}`' for name in names)} |" for verb, names in BATCHES.items()]
    table = "\n".join(rows)
    return f"""# Fault points

{NOTE}
A test can make a process fail at a named point: `WINDLASS_FAULTS='report.before_commit=kill@3'` kills it the third time it is
about to commit a report. Actions: `kill` (SIGKILL), `stop` (SIGSTOP), `drop` (the answer is lost after the commit),
`raise:busy`, `raise:full`, `raise:unknown`, `delay:50ms`; `@N` for the N-th time only. Unset, a point costs one test of a flag.

Every verb has `before_begin`, `before_commit` and `after_commit`, and a point after each of its statements that writes (those
that only lock exist on PostgreSQL). There are also `migrate.between_steps`; on SQLite, `checkpoint.before` and
`checkpoint.after`; and around each attempt of a webhook, `webhook.before_post`, `webhook.after_post`, `webhook.after_2xx` and
`webhook.after_mark`.

{table}
"""


def route_list(tables: tuple[Dialect, ...] | None = None) -> str:
    """Every route of a hub, and the scope it requires."""
    rows = ["| method and path | scope | what it does |", "|---|---|---|"]
    for dialect in tables or description.tables():
        for verb in dialect.verbs:
            scope = verb.scope
            wanted = "none" if scope is None else f"`{scope}`" if isinstance(scope, str) else " or ".join(f"`{one}`" for one in scope)
            rows.append(f"| `{verb.method} {dialect.prefix}{verb.template}` | {wanted} | {verb.summary} |")
    table = "\n".join(rows)
    return f"""# Routes of a hub

{NOTE}
The routes of a hub, and the [scope](access.md) that a token must have for each. `admin` implies the others; `any` is every
valid token, `none` means that no token is needed. `/api/v1/openapi.json` describes bodies and answers.

{table}
"""


_ROOMS = re.compile(r"(<!-- rooms: .*? -->\n).*?(<!-- end of rooms -->)", re.S)


def _rooms() -> str:
    """The layers, the highest first; those on one line may know each other only where an arrow joins them."""
    contracts = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    there = [[name for name in re.findall(r"\w+", layer) if _is_room(name)] for layer in layers]
    boxes = [names for names in there if names]
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    l{n}["{" &nbsp; ".join(names)}"]' for n, names in enumerate(boxes)]
    lines.append("    " + " --> ".join(f"l{n}" for n in range(len(boxes))))
    return "\n".join([*lines, "```"])


def _is_room(name: str) -> bool:
    package = DOCS.parent / "src" / "windlass"
    return (package / name).is_dir() or (package / f"{name}.py").exists()


def architecture() -> str:
    """The page as it is, with the picture of the rooms as they are."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    return _ROOMS.sub(lambda found: f"{found[1]}\n{_rooms()}\n\n{found[2]}", page)


def command_index() -> str:
    """All commands with their modules and help, for a help text that imports none of the modules."""
    rows = "\n".join(f"    {_index_row(module, row)}," for module, row in all_rows())
    return f'''# ruff: noqa: E501
"""Name, module, topic, help and other names of all commands. Written by docs/generate.py; run `make docs` after a change."""

# fmt: off
INDEX: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
{rows}
)
'''


def _index_row(module: str, row: CommandRow) -> str:
    words = ", ".join(map(dumps, row.meant_by)) + ("," if len(row.meant_by) == 1 else "")
    return f"({', '.join(map(dumps, (row.name, module, row.topic, row.help)))}, ({words}))"


_COMMANDS = re.compile(r"(<!-- commands: .*? -->\n).*?(<!-- end of commands -->)", re.S)


def command_line() -> str:
    """The page as it is, with the commands as they are."""
    tables = []
    for topic in TOPICS:
        rows = [f"| `windlass {row.name}` | {row.help} |" for _, row in all_rows() if row.topic == topic]
        tables.append("\n".join([f"| {topic} | |", "|---|---|", *rows]))
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    return _COMMANDS.sub(lambda marks: "\n\n".join((marks[1].rstrip(), *tables, marks[2])), page)


_SETTINGS = re.compile(r"(<!-- settings: .*? -->\n).*?(<!-- end of settings -->)", re.S)


def _setting_row(name: str, setting: Setting) -> str:
    default = setting.otherwise or ("" if setting.default is None else f"`{setting.kind.words(setting.default)}`")
    flag = f"`{setting.flag if setting.flag.startswith('-') else setting.metavar}`" if setting.flag else ""
    choices = ", ".join(f"`{choice}`" for choice in setting.kind.flag.get("choices", ()))
    more = (f": {choices}" if choices else "") + (f" ([more]({setting.page}))" if setting.page else "")
    return f"| `{name}` | `{variable(name)}` | {flag} | {default} | {setting.help}{more} |"


def setting_list(table: Table = SETTINGS) -> str:
    """The table of settings."""
    rows = [_setting_row(name, setting) for name, setting in table.items()]
    return "\n".join(["| setting | variable | flag | default | |", "|---|---|---|---|---|", *rows])


def configuration() -> str:
    """The page as it is, with the settings as they are."""
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    return _SETTINGS.sub(lambda marks: f"{marks[1]}\n{setting_list()}\n\n{marks[2]}", page)


LINES = (("forge", "F", 33), ("guards", "G", 40), ("kumofire", "K", 40), ("so1", "L", 24), ("zerog", "Z", 22))
"""The dialects, the letter of their contracts' lines, and how many lines there are."""


def line_list() -> str:
    """Every line of the contracts of the dialects, with its tests, and where windlass differs."""
    tables = "\n\n".join(f"## {name}\n\n{_lines_of(name, letter, count)}" for name, letter, count in LINES)
    return f"""# The lines of the contracts

{NOTE}
A line is a behaviour that a dialect promises; its page says what the line is about. Its tests carry its number:
`pytest -k "F13 and dialects"` runs those that ask the dialect in its own words, `pytest -k F13` also those that ask windlass in its own.
Here are the first test of each kind and how many more there are.

{tables}
"""


def _lines_of(name: str, letter: str, count: int) -> str:
    page = (DOCS / "dialects" / f"{name}.md").read_text(encoding="utf-8")
    differs = page.partition("## What differs, and why\n")[2].partition("\n## ")[0]
    rows = [f"| line | asked in the words of {name} | asked in windlass's own | where windlass differs |", "|---|---|---|---|"]
    for number in range(1, count + 1):
        line = f"{letter}{number}"
        decisions = re.findall(rf"\*\*([^*]+?)\.?\*\* \([^)]*\b{line}\b[^)]*\)", differs)
        rows.append(f"| {line} | {_first_test(line, dialects=True)} | {_first_test(line, dialects=False)} | {'; '.join(decisions)} |")
    return "\n".join(rows)


def _first_test(line: str, *, dialects: bool) -> str:
    """The first test of a line as a sentence, and how many others there are."""
    tests = DOCS.parent / "tests"
    files = (file for file in sorted(tests.glob("*/test_*.py")) if (file.parent.name == "dialects") is dialects)
    names = [name for file in files for name in re.findall(rf"def test_{line}_(\w+)", file.read_text(encoding="utf-8"))]
    more = f" (+{len(names) - 1})" if len(names) > 1 else ""
    return names[0].replace("_", " ") + more if names else ""


FILES: dict[Path, Callable[[], str]] = {
    blocking.CLIENT: blocking.blocking_client,  # these two first: other texts are read from modules that import them
    blocking.APP: blocking.blocking_app,
    DOCS / "routes.md": route_list,
    DOCS / "lifecycle.md": lifecycle,
    DOCS / "errors.md": error_list,
    DOCS / "faults.md": fault_list,
    DOCS / "architecture.md": architecture,
    DOCS / "configuration.md": configuration,
    DOCS / "cli.md": command_line,
    DOCS / "dialects" / "lines.md": line_list,
    DOCS.parent / "src" / "windlass" / "cli" / "index.py": command_index,
    race_page.PAGE: race_page.page,
    race_page.CHART: lambda: race_page.chart(race_page.result()),
}


def main() -> int:
    check, stale = "--check" in sys.argv, []
    for file, make in FILES.items():
        if (text := make()) != (file.read_text(encoding="utf-8") if file.exists() else ""):
            stale.append(str(file.relative_to(DOCS.parent)))
            if not check:
                file.write_text(text, encoding="utf-8")
    names = ", ".join(stale)
    if check:
        if stale:
            print(f"Not current: {names}. Run `make docs` and commit the result.")
        return len(stale)
    print(f"Wrote {names}." if stale else "All current.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
