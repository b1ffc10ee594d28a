"""Commands and settings are told once: what is added to a table is found in the help, the parser, completion, files, variables and docs."""

from __future__ import annotations

import argparse
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest

from tests.cli.test_cli import Printed, World, _empty_folder
from tests.cli.test_cli import w as w
from windlass import cli
from windlass.cli import codes, completion, parser, rows
from windlass.cli.completion import SHELLS, Node, nodes
from windlass.cli.context import CommandContext
from windlass.cli.index import INDEX
from windlass.cli.rows import CommandRow, Commands, all_rows, edit, one_of, option, rows_of, settings_of
from windlass.config import lookup
from windlass.config.kinds import SECRET, count
from windlass.config.settings import DEFAULTS, SETTINGS, Setting, Settings, table_of
from windlass.errors import BadInput
from windlass.hub import HubSettings
from windlass.worker import solvers

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from generate import setting_list

empty_folder = _empty_folder  # for every test here too


# Settings


class Paint(Settings, frozen=True):
    """A copy of the table with two rows more."""

    shade: Annotated[int | None, Setting(count(1, 9), "how dark it is", "--shade", ("work",), default=3)] = None
    recipe: Annotated[str | None, Setting(SECRET, "the recipe of the paint", otherwise="none", page="#paint")] = None


MORE = table_of(Paint)


def test_a_row_of_the_table_is_a_flag_a_variable_a_key_and_a_line_of_the_docs(tmp_path: Path) -> None:
    (flag,) = (flag for flag in settings_of("work", MORE) if "--shade" in flag.names)
    reader = argparse.ArgumentParser()
    reader.add_argument(*flag.names, **flag.details)
    assert vars(reader.parse_args(["--shade", "5"])) == {"shade": 5}
    assert vars(reader.parse_args([])) == {}
    assert "how dark it is (default: 3)" in reader.format_help()
    assert "--shade" not in [name for flag in settings_of("hub", MORE) for name in flag.names]

    environment = {"WINDLASS_SHADE": "4", "WINDLASS_RECIPE": "linseed"}
    assert lookup(environment=environment, folder=str(tmp_path), table=MORE) == {
        "shade": (4, "WINDLASS_SHADE"),
        "recipe": ("linseed", "WINDLASS_RECIPE"),
    }
    (tmp_path / "windlass.toml").write_text("shade = 7", encoding="utf-8")
    assert lookup(environment={}, folder=str(tmp_path), table=MORE)["shade"].value == 7
    assert lookup({"shade": 8}, environment=environment, folder=str(tmp_path), table=MORE)["shade"] == (8, "the argument shade")
    with pytest.raises(BadInput, match=r"There is no setting .* called shade"):
        lookup(environment=environment, folder=str(tmp_path))

    assert "| `shade` | `WINDLASS_SHADE` | `--shade` | `3` | how dark it is |" in setting_list(MORE)
    assert "| `recipe` | `WINDLASS_RECIPE` |  | none | the recipe of the paint ([more](#paint)) |" in setting_list(MORE)


def test_a_secret_is_in_no_error(tmp_path: Path) -> None:
    (tmp_path / "windlass.toml").write_text("hub_token = 12345", encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        lookup(environment={}, folder=str(tmp_path))
    assert "12345" not in str(caught.value)


def test_every_flag_of_a_setting_is_read_as_the_setting_is(tmp_path: Path) -> None:
    values = {"log_level": "debug", "log_format": "json", "lease": "5s", "grace": "1m", "memory": "2048", "solver_memory": "1GiB"}
    for command in ("", "work", "up", "hub"):
        for flag in settings_of(command):
            reader = argparse.ArgumentParser()
            reader.add_argument(*flag.names, **flag.details)
            name = flag.details.get("dest", flag.names[0])
            words = [] if flag.details.get("action") == "store_true" else [values.get(name, "2")]
            arguments = vars(reader.parse_args([*(flag.names if flag.names[0].startswith("-") else ()), *words]))
            assert lookup(arguments, environment={}, folder=str(tmp_path)).keys() == {name}


def test_the_docs_name_the_defaults_that_are_elsewhere() -> None:
    texts = {name: setting.otherwise for name, setting in SETTINGS.items()}
    assert texts["connections"].startswith(f"{HubSettings().connections:,}")
    assert texts["solver_memory"] == f"{solvers.MEMORY:,}"
    assert texts["solver_processes"] == f"{solvers.PROCESSES:,}"
    assert texts["solver_file_size"] == f"{solvers.FILE_SIZE:,}"
    assert (DEFAULTS.host, DEFAULTS.port) == (HubSettings().host, HubSettings().port)


def test_an_option_of_another_command_is_no_setting(w: World) -> None:
    """`slot --lease` has the name of a setting, and is none."""
    w("resources", "set", "gpu", "--capacity", "1")
    w("slot", "gpu", "--lease", "2m", "--", "true")


# Commands


def paint(context: CommandContext) -> int:
    """Paint a wall."""
    return codes.OK


def _painting() -> CommandRow:
    commands = Commands()
    below = commands.group("paint", examples="windlass paint red", function=paint)
    below.add(
        "wall", option("colour", choices=("red", "blue")), edit("--coats", type=int, metavar="N"), examples="windlass paint wall red"
    )(paint)
    below.add("door", one_of(option("--handle"), option("--tin", metavar="FILE")), examples="windlass paint door")(paint)
    return commands.rows["paint"]


def test_a_row_of_a_command_is_in_the_parser(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(parser, "INDEX", (*INDEX, ("paint", "art", "work", "Paint a wall", ())))
    monkeypatch.setattr(parser, "rows_of", lambda module: {"paint": _painting()} if module == "art" else rows_of(module))
    assert cli.main(["paint", "wall", "red", "--coats", "2", "--store", "x.db"]) == codes.OK
    arguments = parser.parse(["paint", "wall", "red"])
    assert (arguments.run, arguments.colour, hasattr(arguments, "coats")) == (paint, "red", False)
    assert cli.main(["paint", "door", "--handle", "x", "--tin", "y"]) == codes.USAGE
    capsys.readouterr()
    assert cli.main(["--help"]) == cli.main(["paint", "--help"]) == codes.OK
    assert capsys.readouterr().out.count("Paint a wall") == 4  # in the list, and of the group and both its commands


def test_every_module_with_commands_is_an_area() -> None:
    folder = Path(rows.__file__).parent
    names = [path.stem for path in folder.glob("*.py") if "\nCOMMANDS = Commands()\n" in path.read_text(encoding="utf-8")]
    assert sorted(names) == sorted(rows.AREAS)
    assert [(name, module) for name, module, *_ in INDEX] == [(row.name, module) for module, row in all_rows()]


HEAVY = ("windlass.engine", "windlass.store", "windlass.hub", "windlass.worker", "windlass.client", "windlass.app", "windlass.api", "rich")
IMPORTED = f"""
import sys
from windlass.cli import main
main(sys.argv[1:])
print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"]], ids=" ".join)
def test_help_imports_no_command_and_nothing_that_commands_need(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED, *words], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_what_the_package_exports_is_there_though_imported_late() -> None:
    import windlass

    assert [name for name in windlass.__all__ if getattr(windlass, name).__name__.lower() != name.lower()] == []
    assert set(windlass.__all__) <= set(dir(windlass))
    with pytest.raises(AttributeError, match="no attribute 'Windlass'"):
        _ = windlass.Windlass  # type: ignore[attr-defined]


# Completion

CASES = [
    ("windlass pau", {"pause", "pauses"}),
    ("windlass tokens r", {"revoke", "rotate"}),
    ("windlass runs --sta", {"--state"}),
    ("windlass runs --state qu", {"queued", "quarantined"}),
    ("windlass --store runs jobs s", {"show"}),  # the store is called like a command
    ("windlass schedules add --overlap ", {"allow", "skip", "queue", "cancel"}),
    ("windlass work --log-format ", {"text", "json"}),
    ("windlass completion ", {"bash", "zsh", "fish"}),
    ("windlass backup --store onl", {"only.txt"}),
]

BASH = """
source "$1"
IFS=' ' read -r -a COMP_WORDS <<< "$2"
[[ "$2" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_windlass
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """
compadd() { shift; print -l -- "$@" }
_describe() { print -l -- "${(@P)2%%:*}" }
_files() { print -l -- *(N) }
compdef() { : }
source "$1"
words=("${(@s: :)2}")
CURRENT=$#words
_windlass
"""
FISH = "source $argv[1]; complete -C $argv[2]"
CALLS = {"bash": ["bash", "-c", BASH, "bash"], "zsh": ["zsh", "-f", "-c", ZSH, "zsh"], "fish": ["fish", "--no-config", "-c", FISH]}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_options_and_values(shell: str, w: World, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(w("completion", shell), encoding="utf-8")
    (tmp_path / "only.txt").touch()
    for line, words in CASES:
        done = subprocess.run(
            [program, *CALLS[shell][1:], str(script), line],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"HOME": str(tmp_path)},
        )
        assert done.stderr == ""
        start, offers = line.rpartition(" ")[2], [offer.partition("\t")[0] for offer in done.stdout.splitlines()]
        # The functions that stand for those of zsh offer everything; and an option is offered wherever a value can be.
        offered = {offer for offer in offers if offer.startswith(start) and offer.startswith("-") == start.startswith("-")}
        assert offered == words, line


TYPED = [
    ("windlass en", "windlass enqueue"),
    ("windlass runs --state=fai", "windlass runs --state=failed"),
    ("windlass runs --state=", "windlass runs --state="),  # there are several
    ("windlass --store=runs jobs sho", "windlass --store=runs jobs show"),  # the store is called like a command
    ("windlass --hub http://host jobs sho", "windlass --hub http://host jobs show"),
    ("windlass backup --store=onl", "windlass backup --store=only.txt"),
    ("windlass backup onl", "windlass backup only.txt"),
    ("windlass hub --port onl", "windlass hub --port onl"),  # no file
    ("windlass cancel --reason=onl", "windlass cancel --reason=onl"),
]


def test_an_interactive_bash_completes_what_is_typed(w: World, tmp_path: Path) -> None:
    """Bash itself divides a line into words, at = and : too, and offers files where a function offers nothing."""
    program = shutil.which("bash")
    if program is None:
        pytest.skip("bash is not installed")
    (tmp_path / "script").write_text(w("completion", "bash"), encoding="utf-8")
    (tmp_path / "only.txt").touch()
    terminal, end = pty.openpty()
    bash = subprocess.Popen(
        [program, "--norc", "--noprofile", "-i"], stdin=end, stdout=end, stderr=end, cwd=tmp_path, start_new_session=True
    )
    os.close(end)
    os.write(terminal, b"source ./script\n")
    for line, _ in TYPED:  # Tab completes the line, Ctrl-A and Ctrl-E go to its begin and its end
        os.write(terminal, f"{line}\t\x01printf '%s ' \x05 >> typed; echo >> typed\n".encode())
    os.write(terminal, b"exit\n")
    while True:
        try:
            if not os.read(terminal, 4096):
                break
        except OSError:  # as Linux tells that the other end is closed
            break
    os.close(terminal)
    assert bash.wait(timeout=60) == 0
    lines = (tmp_path / "typed").read_text(encoding="utf-8").splitlines()
    assert [" ".join(line.split()) for line in lines] == [completed for _, completed in TYPED]


def test_completion_has_every_command_and_every_option() -> None:
    places = {node.path: node for node in nodes(row for _, row in all_rows())}
    assert set(places[""].commands) == {name for name, *_ in INDEX}
    assert {"--store", "--hub", "--json", "--help", "--slots", "--queue", "--log-level", "--reload"} <= set(places["work"].words)
    assert places["schedules"].words["preview"].startswith("Show the coming instants")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_help_texts_are_quoted_for_the_shell(shell: str) -> None:
    hostile = Node("", {"a": "it's $(touch x) `touch x` \\"}, (option("--b"),))
    text: Any = SHELLS[shell]([hostile])
    program = shutil.which(shell)
    quoted = "it'\\''s" if shell == "zsh" else "it\\'s"
    assert quoted in text
    if program is not None:
        subprocess.run([program, "-n"], input=text, text=True, timeout=60, check=True)


def test_completion_needs_a_known_shell(w: World) -> None:
    printed: Printed = w("completion", "tcsh", exits=codes.USAGE)
    assert "bash" in printed.notes
    assert completion.SHELLS.keys() == CALLS.keys()
