"""Ids and nonces: in their form, and never the same twice, whichever thread or forked process makes them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from base64 import urlsafe_b64decode
from collections.abc import Callable
from uuid import UUID

import pytest

from windlass.clock import SystemClock

MANY = 1_000  # more than are read from the system at once
CLOCK = SystemClock()


def test_an_id_is_a_uuid_of_version_7_with_its_instant() -> None:
    before, identity = CLOCK.now(), UUID(CLOCK.new_id())
    assert (identity.version, identity.variant) == (7, "specified in RFC 4122")
    assert before <= identity.int >> 80 <= CLOCK.now()


def test_a_nonce_has_128_bits() -> None:
    nonces = [urlsafe_b64decode(CLOCK.nonce() + "==") for _ in range(MANY)]
    assert {len(nonce) for nonce in nonces} == {16}
    either, both = 0, 2**128 - 1
    for number in map(int.from_bytes, nonces):
        either, both = either | number, both & number
    assert (either, both) == (2**128 - 1, 0)  # no bit is fixed


@pytest.mark.parametrize("make", [CLOCK.new_id, CLOCK.nonce])
def test_threads_make_no_two_that_are_the_same(make: Callable[[], str]) -> None:
    made = list[str]()
    threads = [threading.Thread(target=lambda: made.extend([make() for _ in range(20 * MANY)])) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(set(made)) == len(made) == 80 * MANY


_FORK = """
import os
from windlass.clock import SystemClock
clock = SystemClock()
first = [clock.new_id()[14:], clock.nonce()]
reader, writer = os.pipe()
child = os.fork()
made = "\\n".join(word for _ in range(3) for word in (clock.new_id()[14:], clock.nonce()))
if child == 0:
    os.write(writer, made.encode())
    os._exit(0)
os.waitpid(child, 0)
print("\\n".join(first), made, os.read(reader, 10_000).decode(), sep="\\n")
"""


def test_a_forked_process_makes_its_own() -> None:
    out = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, check=True, env=os.environ).stdout.split()
    assert len(set(out)) == len(out) == 14
