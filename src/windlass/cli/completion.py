"""The command that prints completion for a shell: a static script, made from the rows of all commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from windlass.cli.codes import OK
from windlass.cli.context import CommandContext
from windlass.cli.rows import COMMON, OPERATE, CommandRow, Commands, Option, all_rows, option

HELP = option("-h", "--help", action="help", help="show this help message and exit")
VERSION = option("--version", action="version", help="show program's version number and exit")
FILES = ("FILE", "FOLDER")  # metavars of options that take a path
PATHS = ("--store",)

COMMANDS = Commands()


class Node(NamedTuple):
    """A position on the command line: the commands so far, the commands that can follow, and the options."""

    path: str
    commands: Mapping[str, str]
    options: tuple[Option, ...]

    @property
    def words(self) -> dict[str, str]:
        """Every word that can follow, with its help."""
        flags = {name: _help(option) for option in self.options for name in option.names if name.startswith("-")}
        values = {value: _help(option) for option in self.options if not _is_flag(option) for value in _choices(option)}
        return {**self.commands, **values, **flags}


def nodes(rows: Iterable[CommandRow]) -> Iterator[Node]:
    """Every position on the command line."""
    rows = list(rows)
    yield Node("", {row.name: row.help for row in rows}, (HELP, VERSION, *COMMON))
    for row in rows:
        yield from _nodes(row, row.name)


def _nodes(row: CommandRow, path: str) -> Iterator[Node]:
    below = row.commands.rows.values() if row.commands is not None else ()
    yield Node(path, {inner.name: inner.help for inner in below}, (HELP, *COMMON, *row.all_options()))
    for inner in below:
        yield from _nodes(inner, f"{path} {inner.name}")


def _is_flag(option: Option) -> bool:
    return option.names[0].startswith("-")


def _takes_value(option: Option) -> bool:
    return _is_flag(option) and option.details.get("action", "append") == "append"


def _choices(option: Option) -> list[str]:
    return [str(choice) for choice in option.details.get("choices", ())]


def _takes_path(option: Option) -> bool:
    return option.details.get("metavar") in FILES or option.names[0] in PATHS


def _help(option: Option) -> str:
    return str(option.details.get("help", "")).replace("%%", "%")


def _places(node: Node, options: Iterable[Option]) -> list[str]:
    return [f'"{node.path} {name}"' for option in options for name in option.names]


def _quoted(text: str) -> str:
    """A text in single quotes, for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


class _Cases(NamedTuple):
    """The branches that the scripts of bash and zsh share."""

    descend: str
    skip: str
    values: str


def _cases(all_nodes: list[Node], reply: str, files: str, nothing: str = ":") -> _Cases:
    descend = "|".join(f'"{node.path} {name}"' for node in all_nodes for name in node.commands)
    taking = [(node, [option for option in node.options if _takes_value(option)]) for node in all_nodes]
    skip = "|".join(place for node, options in taking for place in _places(node, options))
    values = []
    for node, options in taking:
        for one in options:
            action = files if _takes_path(one) else reply.format(" ".join(_choices(one))) if _choices(one) else nothing
            values.append(f"        {'|'.join(_places(node, [one]))}) {action}; return ;;")
    return _Cases(descend, skip, "\n".join(values))


def bash(all_nodes: list[Node]) -> str:
    """The script for bash."""
    reply, files = """COMPREPLY=($(compgen -W '{}' -- "$current"))""", """local IFS=$'\\n'; COMPREPLY=($(compgen -f -- "$current"))"""
    # Where nothing is offered, bash offers files by itself, which are none of these values. Bash before 4 has no compopt.
    cases = _cases(all_nodes, reply, files, "compopt +o default 2> /dev/null")
    words = "\n".join(f'        "{node.path}") words="{" ".join(node.words)}" ;;' for node in all_nodes)
    return f"""# windlass completion for bash; load it with: source <(windlass completion bash)
_windlass() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" at="" words="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$at ${{COMP_WORDS[i]}}" in
        {cases.descend}) at="${{at:+$at }}${{COMP_WORDS[i]}}" ;;
        {cases.skip}) [[ "${{COMP_WORDS[i + 1]}}" == "=" ]] && ((i += 2)) || ((i++)) ;;
        esac
    done
    # Bash takes the = of --option=value for a word of its own.
    if [[ "$previous" == "=" ]]; then
        previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    elif [[ "$current" == "=" ]]; then
        current=""
    fi
    case "$at $previous" in
{cases.values}
    esac
    case "$at" in
{words}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _windlass windlass
"""


def zsh(all_nodes: list[Node]) -> str:
    """The script for zsh."""
    cases = _cases(all_nodes, "compadd -- {}", "_files")
    entries = "\n".join(
        f'        "{node.path}") entries=({" ".join(_quoted(_entry(*word)) for word in node.words.items())}) ;;' for node in all_nodes
    )
    return f"""#compdef windlass
# windlass completion for zsh; load it with: source <(windlass completion zsh), after compinit
_windlass() {{
    local at="" i
    local -a entries
    for ((i = 2; i < CURRENT; i++)); do
        case "$at $words[i]" in
        {cases.descend}) at="${{at:+$at }}$words[i]" ;;
        {cases.skip}) ((i++)) ;;
        esac
    done
    case "$at $words[CURRENT-1]" in
{cases.values}
    esac
    case "$at" in
{entries}
    esac
    _describe windlass entries || _files
}}
if [[ "$funcstack[1]" == _windlass ]]; then
    _windlass
else
    compdef _windlass windlass
fi
"""


def _entry(word: str, text: str) -> str:
    return f"{word}:{text}" if text else word


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish(all_nodes: list[Node]) -> str:
    """The script for fish."""
    descend = " ".join(f'"{node.path} {name}"' for node in all_nodes for name in node.commands)
    skip = " ".join(place for node in all_nodes for place in _places(node, filter(_takes_value, node.options)))
    lines = "\n".join(line for node in all_nodes for line in _fish_lines(node))
    return f"""# windlass completion for fish; load it with: windlass completion fish | source
function __windlass_at
    set -l at ""
    set -l skip 0
    for word in (commandline -opc)[2..]
        if test $skip = 1
            set skip 0
        else if contains -- "$at $word" {descend}
            set at (string trim -- "$at $word")
        else if contains -- "$at $word" {skip}
            set skip 1
        end
    end
    test "$at" = "$argv[1]"
end
complete -c windlass -e
{lines}
"""


def _fish_lines(node: Node) -> Iterator[str]:
    here = f'complete -c windlass -n "__windlass_at {_fish_quoted(node.path)}"'
    for name, text in node.commands.items():
        yield f"{here} -f -a {name} -d {_fish_quoted(text)}"
    for one in node.options:
        if _is_flag(one):
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in one.names)
            value = "" if not _takes_value(one) else " -r" if _takes_path(one) else " -x"
            choices = f" -a {_fish_quoted(' '.join(_choices(one)))}" if _choices(one) else ""
            yield f"{here} {names}{value}{choices} -d {_fish_quoted(_help(one))}"
        elif _choices(one):
            yield f"{here} -f -a {_fish_quoted(' '.join(_choices(one)))}"


SHELLS: Mapping[str, Callable[[list[Node]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


@COMMANDS.add(
    "completion",
    option("for_shell", choices=tuple(SHELLS), metavar="SHELL", help=f"one of {', '.join(SHELLS)}"),
    topic=OPERATE,
    meant_by=("complete",),
    examples="""
    windlass completion bash
    windlass completion zsh
    windlass completion fish
    """,
)
def completion(context: CommandContext) -> int:
    """Print the script that completes commands, options and their values in a shell."""
    context.output.raw(SHELLS[context.arguments.for_shell](list(nodes(row for _, row in all_rows()))).rstrip())
    return OK
