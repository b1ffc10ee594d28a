"""Types are prepared on one thread at a time: msgspec crashes the process when two threads read a new type at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import windlass
from tests.workers import DEADLINE

PROGRAM = """
import json, sys, threading
import msgspec
from windlass.payload import convert, reader

sys.setswitchinterval(1e-6)
DEPTH, THREADS, TYPES = 10, 20, 30

SOURCE = '''class {name}(msgspec.Struct):
    a: int
    b: "{inner} | None" = None
    c: list[dict[str, int]] = []
'''

def nested(n):
    inner = "int"
    for depth in range(DEPTH):
        name = f"T{n}_{depth}"
        exec(SOURCE.format(name=name, inner=inner), globals())
        inner = name
    return globals()[inner]

value = None
for _ in range(DEPTH):
    value = {"a": 1, "b": value, "c": [{"x": 1}]}
text = json.dumps(value)

def read(kind, barrier):
    barrier.wait()
    READ_IT

for n in range(TYPES):
    kind, barrier = nested(n), threading.Barrier(THREADS)
    threads = [threading.Thread(target=read, args=(kind, barrier)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize("read", ["reader(kind)(text)", "convert(value, kind)"])
def test_many_threads_may_read_a_type_for_the_first_time(read: str) -> None:
    command = [sys.executable, "-c", PROGRAM.replace("READ_IT", read)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_no_type_is_read_in_another_way() -> None:
    """The linter refuses decoders and conversions; this is the third way."""
    sources = Path(windlass.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if re.search(r"json\.decode\([^\n]*\btype=", path.read_text())] == []
