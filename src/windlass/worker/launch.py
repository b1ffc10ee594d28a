"""Started in front of a command, as a script: binds it to its worker's life and memory, then becomes it.

A fork of a program with threads must not run Python between fork and exec, so this is a program of its own. It imports nothing of
windlass and little else, because it is paid for at every start.
"""

import os
import signal
import sys

_DIE_WITH_PARENT, _SIGKILL = 1, 9


def bind(memory: int, parent: int) -> None:
    """Limit this process's memory (MiB; 0 is no limit), and have it killed when the thread that started it ends."""
    if memory:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory << 20, memory << 20))
    if sys.platform == "linux" and parent:
        import ctypes

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, _SIGKILL)
        if os.getppid() != parent:  # it died before that was said
            os._exit(1)


if __name__ == "__main__":
    bind(int(sys.argv[1]), int(sys.argv[2]))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and what is ignored is passed on
    try:
        os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 - no shell is what is wanted
    except OSError as error:
        sys.stderr.write(f"windlass: cannot start {sys.argv[3]}: {error.strerror}\n")
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
