"""Started beside a worker that runs commands, as a script: when the worker is gone, so is everything its commands have started.

It hears of process groups on standard input, `+123` and `-123`, and kills those it still knows when that is closed. Like `launch.py` it
imports next to nothing.
"""

import os
import signal
import sys


def main() -> None:
    """Live as long as the worker, and a moment longer."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:
            continue


if __name__ == "__main__":
    main()
