"""Started beside a worker that runs commands, as a script: when the worker is gone, so is everything its commands have started.

It reads process groups from standard input, `+123` and `-123`, and kills the remaining ones when that is closed. Like `launch.py` it
imports next to nothing.
"""

import os
import signal
import sys


def main() -> None:
    """Run until the worker has ended, then kill the groups."""
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
