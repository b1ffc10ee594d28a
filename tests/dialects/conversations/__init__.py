"""Conversations of clients with a server, as files written from a protocol's contract, and how they are replayed.

`-> METHOD PATH BODY` is a request, `<- STATUS BODY` its answer, headers are below either; an answer that is a stream has its events as
`event: NAME | DATA`. `== WORDS` is what the test itself does. `$name` stands for any value where it comes first, and for the same value
wherever it comes again; beside another form of the same value it is bound to that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.dialects.doors import Answer

FOLDER = Path(__file__).parent
_EVENT = re.compile(r"event: (\w+) \| ")


class Turn(NamedTuple):
    """A request or an answer, or something that the test does."""

    kind: str
    words: str
    headers: dict[str, str]


Ask = Callable[[str, str, Any, Mapping[str, str]], Answer]


def turns(name: str) -> Iterator[Turn]:
    """What happens in a conversation, in its order."""
    turn: Turn | None = None
    for line in (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("   ") and turn is not None:
            header, _, value = line.strip().partition(": ")
            turn.headers[header.lower()] = value
        elif line[:2] in ("->", "<-", "=="):
            if turn is not None:
                yield turn
            turn = Turn(line[:2], line[3:], {})
    if turn is not None:
        yield turn


def replay(name: str, ask: Ask, do: Callable[[str], None]) -> None:
    """Hold a conversation, and every answer to what it says."""
    known: dict[str, Any] = {}
    answer: Answer | None = None
    for turn in turns(name):
        if turn.kind == "==":
            do(turn.words)
        elif turn.kind == "->":
            method, path, *body = turn.words.split(" ", 2)
            path = re.sub(r"\$(\w+)", lambda name: str(known[name[1]]), path)
            answer = ask(method, path, json.loads(body[0]) if body else None, turn.headers)
        else:
            assert answer is not None
            _compare(turn, answer, known)


def _compare(turn: Turn, answer: Answer, known: dict[str, Any]) -> None:
    status, _, body = turn.words.partition(" ")
    assert answer.status == int(status), (turn, answer)
    if body.startswith("event: "):
        parts = _EVENT.split(body)[1:]
        expected = [[event, json.loads(data)] for event, data in zip(parts[::2], parts[1::2], strict=True)]
        _match(expected, _events(answer.body.decode()), known, turn)
    elif body:
        _match(json.loads(body), answer.json, known, turn)
    for header, value in turn.headers.items():
        _match(value, answer.headers[header], known, turn)


def _events(text: str) -> list[list[Any]]:
    blocks = [dict(line.partition(": ")[::2] for line in block.splitlines()) for block in text.split("\n\n")]
    return [[fields["event"], json.loads(fields["data"])] for fields in blocks if "data" in fields]


def _match(expected: Any, value: Any, known: dict[str, Any], turn: Turn) -> None:
    if isinstance(expected, str) and expected.startswith("$"):
        assert known.setdefault(expected[1:], value) == value, (turn, expected, value)
    elif isinstance(expected, dict) and isinstance(value, dict):
        assert expected.keys() == value.keys(), (turn, expected, value)
        for name, member in expected.items():
            _match(member, value[name], known, turn)
    elif isinstance(expected, list) and isinstance(value, list):
        assert len(expected) == len(value), (turn, expected, value)
        for one, other in zip(expected, value, strict=True):
            _match(one, other, known, turn)
    else:
        assert expected == value, (turn, expected, value)
